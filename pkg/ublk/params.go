package ublk

// Params is what the disk looks like to its users (struct ublk_params). It can
// be set once, between Add and Start. Sizes are bytes where the name says so;
// a sector is 512 bytes.
type Params struct {
	// Sectors is the capacity.
	Sectors uint64

	// LogicalBlockBytes is the unit of addressing, a power of two from 512 to
	// the page size; 0 means 4096.
	LogicalBlockBytes uint32
	// PhysicalBlockBytes is the unit the medium writes without reading; 0
	// means LogicalBlockBytes.
	PhysicalBlockBytes uint32
	// IOMinBytes and IOOptBytes are hints; 0 means PhysicalBlockBytes for the
	// first and no hint beyond it for the second.
	IOMinBytes, IOOptBytes uint32
	// MaxSectors bounds one request; 0 means the device's MaxIOBytes.
	MaxSectors uint32

	// ReadOnly makes the disk refuse writes.
	ReadOnly bool
	// Rotational tells schedulers that seeks cost.
	Rotational bool
	// VolatileCache says that a write may be lost by a power cut until a
	// flush; without it the kernel never sends a flush.
	VolatileCache bool
	// FUA says that single writes can be made durable. It needs VolatileCache.
	FUA bool

	// DiscardGranularityBytes must be set if one of the next two is; 0 then
	// means LogicalBlockBytes.
	DiscardGranularityBytes uint32
	// MaxDiscardSectors bounds one discard; 0 means that there is none.
	MaxDiscardSectors uint32
	// MaxWriteZeroesSectors bounds one write of zeroes; 0 means that the
	// kernel writes zeroes as data.
	MaxWriteZeroesSectors uint32

	// The device numbers, filled by Control.Params and ignored by SetParams.
	// Those of the disk are 0 until Start.
	CharMajor, CharMinor, DiskMajor, DiskMinor uint32
}

// Params are the parameters of a disk that this file can serve: its size, block
// sizes that its direct I/O accepts, a volatile cache with FUA, and discard and
// write-zeroes as far as the file system has them.
func (i FileInfo) Params() Params {
	lbs := uint32(4096)
	if i.Direct {
		lbs = max(512, i.DirectOffsetBytes)
	}
	p := Params{
		Sectors:            uint64(i.SizeBytes) / 512,
		LogicalBlockBytes:  lbs,
		PhysicalBlockBytes: max(4096, lbs),
		VolatileCache:      true,
		FUA:                true,
	}
	if i.PunchHole {
		p.DiscardGranularityBytes = max(4096, lbs)
		p.MaxDiscardSectors = maxRangeSectors
		if i.ZeroRange {
			p.MaxWriteZeroesSectors = maxRangeSectors
		}
	}
	return p
}

// maxRangeSectors bounds one discard or write of zeroes to 1 GiB: freeing the
// extents of a range takes the file's lock, and I/O behind it waits.
const maxRangeSectors = 1 << 21
