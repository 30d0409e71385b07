// Package uring is the part of io_uring (include/uapi/linux/io_uring.h) that a
// ublk server needs: one ring, used by one OS thread, with entries of 64 or 128
// bytes. All memory the kernel sees is mapped outside the Go heap.
//
// A Ring is not safe for use by more than one goroutine, and its goroutine must
// be locked to its thread from New on: the kernel refuses entries from another,
// and the workers that run blocking operations belong to the thread.
package uring
