package pool

import (
	"cmp"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// sharing finds out how much space files take that share extents: each counts them
// as its own, and the disk has them once.
type sharing struct{ ranges []physical }

type physical struct{ start, end uint64 }

// twiceBytes is by how much the files' allocated bytes are more than what is on the
// disk.
func (s *sharing) twiceBytes() int64 {
	slices.SortFunc(s.ranges, func(a, b physical) int { return cmp.Compare(a.start, b.start) })
	var twice, end uint64
	for _, r := range s.ranges {
		if r.start < end {
			twice += min(r.end, end) - r.start
		}
		end = max(end, r.end)
	}
	return int64(twice)
}

// add looks at a file of dir.
func (s *sharing) add(dir *os.File, name string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	q := &fiemap{}
	for start := uint64(0); ; {
		extents, err := q.read(f, start, 0)
		if err != nil {
			return fmt.Errorf("look for shared extents: %w", err)
		}
		for _, e := range extents {
			if e.flags&fiemapExtentShared != 0 {
				s.ranges = append(s.ranges, physical{e.physical, e.physical + e.length})
			}
			start = e.logical + e.length
		}
		if len(extents) == 0 || extents[len(extents)-1].flags&fiemapExtentLast != 0 {
			return nil
		}
	}
}
