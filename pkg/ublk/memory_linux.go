package ublk

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapMemory returns zeroed memory outside the Go heap. The kernel gets addresses
// of it in memory of its own, where the garbage collector can't see them.
func mapMemory(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return b, nil
}

// kickEventfd wakes the ring that reads fd. It cannot fail other than by a
// closed descriptor: the counter never fills.
func kickEventfd(fd int) {
	one := uint64(1)
	_, _ = unix.Write(fd, (*[8]byte)(unsafe.Pointer(&one))[:])
}
