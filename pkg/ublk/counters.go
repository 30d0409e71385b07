package ublk

import (
	"errors"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// Counters count what a device did: requests that succeeded, their bytes, the
// time from the driver's handing them out to their answer, and those that
// failed. All fields only grow, and are added to atomically; the layout is fixed (CountersBytes bytes), so that a Counters may
// lie in memory shared with another process.
type Counters struct {
	Reads, Writes, Flushes, Discards, WriteZeroes         atomic.Uint64
	ReadBytes, WriteBytes, DiscardBytes, WriteZeroesBytes atomic.Uint64
	ReadErrors, WriteErrors, FlushErrors, DiscardErrors   atomic.Uint64
	WriteZeroesErrors                                     atomic.Uint64
	ReadNanos, WriteNanos, FlushNanos, DiscardNanos       atomic.Uint64
	WriteZeroesNanos                                      atomic.Uint64
	// FUAWrites are those of Writes that were made durable one by one.
	FUAWrites atomic.Uint64
	// BufferWaits counts requests that had to wait for a buffer of the ring.
	BufferWaits atomic.Uint64
	// Failed is 1 once the target failed for good (FileTarget.Err). A Counters
	// that outlives its process carries this over: Serve fails the target of
	// the next one too.
	Failed atomic.Uint64
	// ThrottledNanos is for how long requests have waited because of limits. It is part
	// of ReadNanos and WriteNanos.
	ThrottledNanos atomic.Uint64
	// lastFailure is what LastFailure says; 0 without one.
	lastFailure atomic.Uint64
	_           [8]uint64
}

// A Failure is why a request of a file target failed.
type Failure struct {
	Op string // READ, WRITE, FLUSH, DISCARD or WRITE_ZEROES
	// Copying: it failed between the device and the buffer, not at the file.
	Copying bool
	// Errno is what the kernel answered; 0 for less than was asked for.
	Errno syscall.Errno
}

func (f Failure) String() string {
	at, why := "at the file", "it came short"
	if f.Copying {
		at = "between device and buffer"
	}
	if f.Errno != 0 {
		why = f.Errno.Error()
	}
	return f.Op + " " + at + ": " + why
}

var opNames = map[uint8]string{
	sys.OpRead: "READ", sys.OpWrite: "WRITE", sys.OpFlush: "FLUSH", sys.OpDiscard: "DISCARD", sys.OpWriteZeroes: "WRITE_ZEROES",
}

const (
	failureNoted   = 1 << 63
	failureCopying = 1 << 62
)

func (c *Counters) noteFailure(op uint8, copying bool, errno syscall.Errno) {
	bits := failureNoted | uint64(op)<<32 | uint64(uint32(errno))
	if copying {
		bits |= failureCopying
	}
	c.lastFailure.Store(bits)
}

// LastFailure returns why the last request that failed did, and whether there was one.
func (c *Counters) LastFailure() (Failure, bool) {
	bits := c.lastFailure.Load()
	return Failure{Op: opNames[uint8(bits>>32)], Copying: bits&failureCopying != 0, Errno: syscall.Errno(uint32(bits))}, bits != 0
}

// CountersBytes is the size of a Counters.
const CountersBytes = 256

var _ [CountersBytes]byte = [unsafe.Sizeof(Counters{})]byte{}

// CountersAt uses b, which must be 8-byte aligned and CountersBytes long, as a
// Counters. b must stay mapped for as long as the result is used.
func CountersAt(b []byte) (*Counters, error) {
	if len(b) < CountersBytes {
		return nil, errors.New("ublk counters: memory too small")
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%8 != 0 {
		return nil, errors.New("ublk counters: memory not aligned")
	}
	return (*Counters)(p), nil
}
