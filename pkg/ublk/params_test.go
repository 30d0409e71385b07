package ublk

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

func TestParamsSurviveTheirEncoding(t *testing.T) {
	for name, c := range map[string]struct{ in, want Params }{
		"zero values are filled in": {
			Params{Sectors: 8, MaxSectors: 1024},
			Params{Sectors: 8, MaxSectors: 1024, LogicalBlockBytes: 4096, PhysicalBlockBytes: 4096, IOMinBytes: 4096, IOOptBytes: 4096},
		},
		"discard takes the block as its unit": {
			Params{Sectors: 8, MaxSectors: 8, LogicalBlockBytes: 512, MaxDiscardSectors: 100},
			Params{Sectors: 8, MaxSectors: 8, LogicalBlockBytes: 512, PhysicalBlockBytes: 512, IOMinBytes: 512, IOOptBytes: 512,
				DiscardGranularityBytes: 512, MaxDiscardSectors: 100},
		},
		"everything said is kept": {
			Params{Sectors: 1 << 40, MaxSectors: 8, LogicalBlockBytes: 512, PhysicalBlockBytes: 4096, IOMinBytes: 8192, IOOptBytes: 1 << 20,
				ReadOnly: true, Rotational: true, VolatileCache: true, FUA: true,
				DiscardGranularityBytes: 65536, MaxDiscardSectors: 1, MaxWriteZeroesSectors: 2},
			Params{Sectors: 1 << 40, MaxSectors: 8, LogicalBlockBytes: 512, PhysicalBlockBytes: 4096, IOMinBytes: 8192, IOOptBytes: 1 << 20,
				ReadOnly: true, Rotational: true, VolatileCache: true, FUA: true,
				DiscardGranularityBytes: 65536, MaxDiscardSectors: 1, MaxWriteZeroesSectors: 2},
		},
	} {
		raw, err := c.in.encode()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(c.want, decodeParams(&raw)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if discards := c.want.MaxDiscardSectors > 0; (raw.Types&sys.ParamDiscard != 0) != discards || discards && raw.Discard.MaxSegments != 1 {
			t.Errorf("%s: types %b", name, raw.Types)
		}
	}
}

func TestImpossibleParamsAreRefused(t *testing.T) {
	for name, p := range map[string]Params{
		"no size":                {MaxSectors: 8},
		"a size of half a block": {MaxSectors: 8, Sectors: 1},
		"a block of 1000 bytes":  {MaxSectors: 8, Sectors: 1000, LogicalBlockBytes: 1000},
		"a hint of 3 bytes":      {MaxSectors: 8, Sectors: 8, IOOptBytes: 3},
		"FUA without a cache":    {MaxSectors: 8, Sectors: 8, FUA: true},
	} {
		if _, err := p.encode(); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestParamsOfAFile(t *testing.T) {
	for name, c := range map[string]struct {
		in   FileInfo
		want Params
	}{
		"direct I/O in units of 512 bytes": {
			FileInfo{SizeBytes: 1 << 20, Direct: true, DirectOffsetBytes: 512, DirectMemoryBytes: 4, PunchHole: true, ZeroRange: true},
			Params{Sectors: 2048, LogicalBlockBytes: 512, PhysicalBlockBytes: 4096, VolatileCache: true, FUA: true,
				DiscardGranularityBytes: 4096, MaxDiscardSectors: maxRangeSectors, MaxWriteZeroesSectors: maxRangeSectors},
		},
		"no zero range: zeroes are written": {
			FileInfo{SizeBytes: 1 << 20, Direct: true, DirectOffsetBytes: 4096, PunchHole: true},
			Params{Sectors: 2048, LogicalBlockBytes: 4096, PhysicalBlockBytes: 4096, VolatileCache: true, FUA: true,
				DiscardGranularityBytes: 4096, MaxDiscardSectors: maxRangeSectors},
		},
		"a file system that can do nothing": {
			FileInfo{SizeBytes: 1 << 20},
			Params{Sectors: 2048, LogicalBlockBytes: 4096, PhysicalBlockBytes: 4096, VolatileCache: true, FUA: true},
		},
	} {
		if d := cmp.Diff(c.want, c.in.Params()); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
