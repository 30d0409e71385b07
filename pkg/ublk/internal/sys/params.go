package sys

import (
	"structs"
	"unsafe"
)

// Bits of Params.Types: which parts are filled.
const (
	ParamBasic   = 1 << 0
	ParamDiscard = 1 << 1
	ParamDevt    = 1 << 2 // read-only
)

// Bits of ParamsBasic.Attrs.
const (
	AttrReadOnly      = 1 << 0
	AttrRotational    = 1 << 1
	AttrVolatileCache = 1 << 2
	AttrFUA           = 1 << 3
)

// ParamsBasic is the part every device needs.
type ParamsBasic struct {
	_             structs.HostLayout
	Attrs         uint32
	LogicalShift  uint8
	PhysicalShift uint8
	IOOptShift    uint8
	IOMinShift    uint8
	MaxSectors    uint32
	ChunkSectors  uint32
	DevSectors    uint64
	VirtBoundary  uint64
}

// ParamsDiscard is about discard and write-zeroes.
type ParamsDiscard struct {
	_                     structs.HostLayout
	Alignment             uint32
	Granularity           uint32
	MaxDiscardSectors     uint32
	MaxWriteZeroesSectors uint32
	MaxSegments           uint16
	_                     uint16
}

// ParamsDevt are the numbers of the two device nodes.
type ParamsDevt struct {
	_                                          structs.HostLayout
	CharMajor, CharMinor, DiskMajor, DiskMinor uint32
}

// Params is the head of the driver's parameter block, up to the last part this
// package sets or reads. The driver takes the length from Len and leaves what
// lies behind it alone, so that old and new drivers accept this one.
type Params struct {
	_       structs.HostLayout
	Len     uint32
	Types   uint32
	Basic   ParamsBasic
	Discard ParamsDiscard
	Devt    ParamsDevt
	_       uint32
}

// ParamsLen goes into Params.Len: everything but the padding at the end.
const ParamsLen = 76

var (
	_ [32]byte        = [unsafe.Sizeof(ParamsBasic{})]byte{}
	_ [20]byte        = [unsafe.Sizeof(ParamsDiscard{})]byte{}
	_ [16]byte        = [unsafe.Sizeof(ParamsDevt{})]byte{}
	_ [ParamsLen]byte = [unsafe.Offsetof(Params{}.Devt) + unsafe.Sizeof(ParamsDevt{})]byte{}
)
