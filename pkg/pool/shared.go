package pool

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"unsafe"

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

// The request of FS_IOC_FIEMAP, include/uapi/linux/fiemap.h.
const (
	fsIocFiemap        = 0xc020660b
	fiemapExtentLast   = 0x1
	fiemapExtentShared = 0x2000
	fiemapBatch        = 256
)

type fiemapExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

type fiemap struct {
	start, length uint64
	flags, mapped uint32
	count, _      uint32
	extents       [fiemapBatch]fiemapExtent
}

var (
	_ [56]byte                  = [unsafe.Sizeof(fiemapExtent{})]byte{}
	_ [32 + 56*fiemapBatch]byte = [unsafe.Sizeof(fiemap{})]byte{}
)

// add looks at a file of dir.
func (s *sharing) add(dir *os.File, name string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer unix.Close(fd)
	q := &fiemap{}
	for start := uint64(0); ; {
		q.start, q.length, q.flags, q.mapped, q.count = start, ^uint64(0)-start, 0, 0, fiemapBatch
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIocFiemap, uintptr(unsafe.Pointer(q))); errno != 0 {
			return fmt.Errorf("look for shared extents of %s: %w", name, errno)
		}
		for _, e := range q.extents[:q.mapped] {
			if e.flags&fiemapExtentShared != 0 {
				s.ranges = append(s.ranges, physical{e.physical, e.physical + e.length})
			}
			start = e.logical + e.length
		}
		if q.mapped == 0 || q.extents[q.mapped-1].flags&fiemapExtentLast != 0 {
			return nil
		}
	}
}
