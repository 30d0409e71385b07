package ublk

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// encode fills in zero values and puts p into the kernel's form. MaxSectors
// must be set.
func (p Params) encode() (sys.Params, error) {
	if p.LogicalBlockBytes == 0 {
		p.LogicalBlockBytes = 4096
	}
	if p.PhysicalBlockBytes == 0 {
		p.PhysicalBlockBytes = p.LogicalBlockBytes
	}
	if p.IOMinBytes == 0 {
		p.IOMinBytes = p.PhysicalBlockBytes
	}
	if p.IOOptBytes == 0 {
		p.IOOptBytes = p.IOMinBytes
	}
	if p.FUA && !p.VolatileCache {
		return sys.Params{}, errors.New("FUA without a volatile cache means nothing")
	}
	if p.Sectors == 0 || p.Sectors*512%uint64(p.LogicalBlockBytes) != 0 {
		return sys.Params{}, fmt.Errorf("%d sectors are not a positive number of blocks of %d bytes", p.Sectors, p.LogicalBlockBytes)
	}
	raw := sys.Params{
		Len:   sys.ParamsLen,
		Types: sys.ParamBasic,
		Basic: sys.ParamsBasic{MaxSectors: p.MaxSectors, DevSectors: p.Sectors},
	}
	for _, a := range []struct {
		on  bool
		bit uint32
	}{
		{p.ReadOnly, sys.AttrReadOnly}, {p.Rotational, sys.AttrRotational},
		{p.VolatileCache, sys.AttrVolatileCache}, {p.FUA, sys.AttrFUA},
	} {
		if a.on {
			raw.Basic.Attrs |= a.bit
		}
	}
	for _, s := range []struct {
		what  string
		bytes uint32
		shift *uint8
	}{
		{"logical block", p.LogicalBlockBytes, &raw.Basic.LogicalShift},
		{"physical block", p.PhysicalBlockBytes, &raw.Basic.PhysicalShift},
		{"smallest I/O", p.IOMinBytes, &raw.Basic.IOMinShift},
		{"best I/O", p.IOOptBytes, &raw.Basic.IOOptShift},
	} {
		if bits.OnesCount32(s.bytes) != 1 {
			return sys.Params{}, fmt.Errorf("%s of %d bytes is not a power of two", s.what, s.bytes)
		}
		*s.shift = uint8(bits.TrailingZeros32(s.bytes))
	}
	if p.MaxDiscardSectors > 0 || p.MaxWriteZeroesSectors > 0 {
		if p.DiscardGranularityBytes == 0 {
			p.DiscardGranularityBytes = p.LogicalBlockBytes
		}
		raw.Types |= sys.ParamDiscard
		raw.Discard = sys.ParamsDiscard{
			Granularity:           p.DiscardGranularityBytes,
			MaxDiscardSectors:     p.MaxDiscardSectors,
			MaxWriteZeroesSectors: p.MaxWriteZeroesSectors,
			MaxSegments:           1,
		}
	}
	return raw, nil
}

func decodeParams(raw *sys.Params) Params {
	b := &raw.Basic
	p := Params{
		Sectors:            b.DevSectors,
		LogicalBlockBytes:  1 << b.LogicalShift,
		PhysicalBlockBytes: 1 << b.PhysicalShift,
		IOMinBytes:         1 << b.IOMinShift,
		IOOptBytes:         1 << b.IOOptShift,
		MaxSectors:         b.MaxSectors,
		ReadOnly:           b.Attrs&sys.AttrReadOnly != 0,
		Rotational:         b.Attrs&sys.AttrRotational != 0,
		VolatileCache:      b.Attrs&sys.AttrVolatileCache != 0,
		FUA:                b.Attrs&sys.AttrFUA != 0,
	}
	if raw.Types&sys.ParamDiscard != 0 {
		p.DiscardGranularityBytes = raw.Discard.Granularity
		p.MaxDiscardSectors = raw.Discard.MaxDiscardSectors
		p.MaxWriteZeroesSectors = raw.Discard.MaxWriteZeroesSectors
	}
	if raw.Types&sys.ParamDevt != 0 {
		p.CharMajor, p.CharMinor = raw.Devt.CharMajor, raw.Devt.CharMinor
		p.DiskMajor, p.DiskMinor = raw.Devt.DiskMajor, raw.Devt.DiskMinor
	}
	return p
}
