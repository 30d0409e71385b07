package ublk

import (
	"errors"
	"io"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// callBackend answers a request by Go code, here and now.
func (q *ringQueue) callBackend(r *Ring, t *tag) int32 {
	off, n := int64(t.off), int64(t.length)
	var err error
	switch t.op {
	case sys.OpRead:
		b := r.pool.bytes(t.buf, int(n))
		var got int
		got, err = q.backend.ReadAt(b, off)
		if err == nil || errors.Is(err, io.EOF) {
			clear(b[got:])
			err = q.copyData(unix.SYS_PWRITE64, b, t)
		}
		if err == nil {
			return int32(n)
		}
	case sys.OpWrite:
		b := r.pool.bytes(t.buf, int(n))
		if err = q.copyData(unix.SYS_PREAD64, b, t); err == nil {
			_, err = q.backend.WriteAt(b, off)
		}
		if err == nil && t.flags&sys.FlagFUA != 0 {
			err = q.backend.Flush()
		}
		if err == nil {
			return int32(n)
		}
	case sys.OpFlush:
		err = q.backend.Flush()
	case sys.OpDiscard:
		err = q.backend.Discard(off, n)
	case sys.OpWriteZeroes:
		err = q.backend.WriteZeroes(off, n)
	default:
		err = unix.EOPNOTSUPP
	}
	return errnoOf(err)
}

// copyData moves the bytes of a request by a system call: quicker than through
// the ring, as there is nothing to wait for.
func (q *ringQueue) copyData(call uintptr, b []byte, t *tag) error {
	n, _, errno := unix.RawSyscall6(call, uintptr(q.device.fd), uintptr(unsafe.Pointer(&b[0])),
		uintptr(len(b)), uintptr(sys.DataOffset(q.id, t.index)), 0, 0)
	switch {
	case errno != 0:
		return errno
	case int(n) != len(b):
		return unix.EIO
	}
	return nil
}

// errnoOf is what the disk's user will see of an error.
func errnoOf(err error) int32 {
	if err == nil {
		return 0
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && errno > 0 && errno < 4096 {
		return -int32(errno)
	}
	return -int32(unix.EIO)
}

func count(ops, errs, nanos *atomic.Uint64, res int32, took uint64) {
	if res < 0 {
		errs.Add(1)
		return
	}
	ops.Add(1)
	nanos.Add(took)
}
