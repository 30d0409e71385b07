package pool

import (
	"math"
	"os"
	"slices"
)

// Range is the bytes of a volume from Start to before End.
type Range struct{ Start, End int64 }

// extent is a run of a file that holds data. Between extents a file reads zeros.
type extent struct {
	Range
	// place is where the file system keeps it, in bytes. Equal places of two files are
	// the same bytes of the disk. Without placed it is not known.
	place  uint64
	placed bool
}

// placeAt is where the file system keeps the byte at, which is in the extent.
func (e extent) placeAt(at int64) uint64 { return e.place + uint64(at-e.Start) }

// readExtents returns the extents of a file from a byte on, clipped to size. They are all
// up to the byte until; behind it there may be more.
func readExtents(q *fiemap, f *os.File, from, size int64) (list []extent, until int64, err error) {
	if from >= size {
		return nil, math.MaxInt64, nil
	}
	read, err := q.read(f, uint64(from), fiemapFlagSync)
	if err != nil {
		return nil, 0, err
	}
	if len(read) < fiemapBatch || read[len(read)-1].flags&fiemapExtentLast != 0 {
		until = math.MaxInt64
	} else {
		last := read[len(read)-1]
		until = int64(last.logical + last.length)
	}
	return toExtents(read, from, size), until, nil
}

// toExtents keeps what holds data. What is allocated and not written reads zeros, as a
// hole does.
func toExtents(read []fiemapExtent, from, size int64) []extent {
	list := make([]extent, 0, len(read))
	for _, r := range read {
		if r.flags&fiemapExtentUnwritten != 0 && r.flags&fiemapExtentNoPlace == 0 {
			continue
		}
		e := extent{Range: Range{int64(r.logical), int64(r.logical + r.length)}}
		if r.flags&fiemapExtentNoPlace == 0 {
			e.place, e.placed = r.physical, true
		}
		if e.Start < from {
			e.place += uint64(from - e.Start)
			e.Start = from
		}
		e.End = min(e.End, size)
		if e.Start < e.End {
			list = append(list, e)
		}
	}
	return list
}

// differing calls emit for the ranges in which two files may differ, in order: one of
// them has data and the other has none, or not at the same place. Neighbours may touch.
func differing(base, target []extent, from, until int64, emit func(Range)) {
	for at := from; at < until; {
		b, inBase, baseEnd := find(base, at)
		t, inTarget, targetEnd := find(target, at)
		end := min(baseEnd, targetEnd, until)
		same := inBase == inTarget
		if inBase && inTarget {
			same = b.placed && t.placed && b.placeAt(at) == t.placeAt(at)
		}
		if !same {
			emit(Range{at, end})
		}
		at = end
	}
}

// find returns the extent that has a byte, or that none does, and up to where that is
// so.
func find(list []extent, at int64) (e extent, in bool, end int64) {
	i, _ := slices.BinarySearchFunc(list, at, func(e extent, at int64) int {
		if e.End <= at {
			return -1
		}
		return 1
	})
	switch {
	case i == len(list):
		return e, false, math.MaxInt64
	case list[i].Start > at:
		return e, false, list[i].Start
	}
	return list[i], true, list[i].End
}
