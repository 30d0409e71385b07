package ublk

import "os"

// A Target is where the bytes of a device live: a file (File), memory or
// whatever else Go code can answer for (FromBackend), or nowhere (Null). One
// Target serves all queues of a device, also on several rings.
type Target interface {
	// targetKind keeps the set closed: a ring must know how to run each kind.
	targetKind() targetKind
}

type targetKind uint8

const (
	targetFile targetKind = iota
	targetBackend
	targetNull
)

// A Backend answers requests in Go. Its methods run on the thread of the ring
// that serves the queue, one after the other, and stop every device of that
// ring while they run: they must be quick, must not block, and must never
// touch a device that this process serves. With queues on several rings they
// are called from several threads at once.
//
// Offsets and lengths are bytes, multiples of the logical block size and
// within the device. An error that holds a syscall.Errno reaches the disk's
// user as that errno, any other as EIO.
type Backend interface {
	// ReadAt fills p. Fewer bytes with a nil error or io.EOF mean that the
	// rest is zero.
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	// Flush makes every write that has returned durable.
	Flush() error
	// Discard may drop the bytes; what is read there afterwards is undefined.
	Discard(off, n int64) error
	// WriteZeroes makes the bytes read as zero.
	WriteZeroes(off, n int64) error
}

// FromBackend is a Target that calls b.
func FromBackend(b Backend) Target { return &backendTarget{b} }

type backendTarget struct{ Backend }

func (*backendTarget) targetKind() targetKind { return targetBackend }

// Null is a Target that completes every request without moving a byte. What is
// read from it is whatever the pages held: for benchmarks, never for users.
func Null() Target { return nullTarget{} }

type nullTarget struct{}

func (nullTarget) targetKind() targetKind { return targetNull }

// FileOptions adjust a file target; the zero value is the right one for a
// volume.
type FileOptions struct {
	// Info is what ProbeFile found for this file, if the caller has it already;
	// nil makes File probe.
	Info *FileInfo
}

// FileInfo is what ProbeFile finds out about a file.
type FileInfo struct {
	// SizeBytes is the file's size.
	SizeBytes int64
	// Direct says whether the descriptor is open with O_DIRECT, and
	// DirectOffsetBytes and DirectMemoryBytes what its file system then asks
	// of offsets and memory (STATX_DIOALIGN; 4096 where it does not say).
	Direct                               bool
	DirectOffsetBytes, DirectMemoryBytes uint32
	// PunchHole and ZeroRange say which fallocate modes work here.
	PunchHole, ZeroRange bool
}

// FileTarget serves a file through the ring: no byte of it passes through Go.
type FileTarget struct {
	f     *os.File
	fd    int
	align uint64 // of direct I/O, a power of two; 1 without it
	info  FileInfo
	fail  stickyError
}

func (*FileTarget) targetKind() targetKind { return targetFile }

// Info returns what is known about the file.
func (t *FileTarget) Info() FileInfo { return t.info }

// Err returns the error that failed the target, or nil. A failed flush fails a
// target for good: what the flush should have saved may be lost, so that later
// flushes and writes answer EIO instead of a success that would hide it.
func (t *FileTarget) Err() error { return t.fail.err() }
