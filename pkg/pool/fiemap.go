package pool

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The request of FS_IOC_FIEMAP, include/uapi/linux/fiemap.h.
const (
	fsIocFiemap    = 0xc020660b
	fiemapFlagSync = 0x1 // write dirty pages first
	fiemapBatch    = 256

	fiemapExtentLast      = 0x1
	fiemapExtentUnwritten = 0x800 // allocated, reads zeros
	fiemapExtentShared    = 0x2000

	// Where the bytes are is not known (UNKNOWN, DELALLOC), or the place does not hold
	// them as they are: ENCODED (compressed), DATA_ENCRYPTED, NOT_ALIGNED, DATA_INLINE,
	// DATA_TAIL.
	fiemapExtentNoPlace = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400
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
	_ [40]byte                  = [unsafe.Offsetof(fiemapExtent{}.flags)]byte{}
	_ [32]byte                  = [unsafe.Offsetof(fiemap{}.extents)]byte{}
	_ [32 + 56*fiemapBatch]byte = [unsafe.Sizeof(fiemap{})]byte{}
)

// read asks for the extents of a file that end behind start, in order; there may be more
// than are returned, unless the last of them says that it is. They are q's own.
func (q *fiemap) read(f *os.File, start uint64, flags uint32) ([]fiemapExtent, error) {
	q.start, q.length, q.flags, q.mapped, q.count = start, ^uint64(0)-start, flags, 0, fiemapBatch
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(q))); errno != 0 {
		return nil, fmt.Errorf("read extents of %s (FIEMAP): %w", f.Name(), errno)
	}
	return q.extents[:q.mapped], nil
}
