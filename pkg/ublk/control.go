package ublk

import (
	"os"
	"time"
)

// ControlPath is the driver's control device.
const ControlPath = "/dev/ublk-control"

// ControlOptions adjust a Control; the zero value is fine.
type ControlOptions struct {
	// Path of the control device; "" means ControlPath.
	Path string
	// Workers is how many commands run at once; 0 means 32. Each occupies a
	// thread of the kernel while it runs.
	Workers int
	// Timeout bounds each command, on top of its context; 0 means 30 s.
	Timeout time.Duration
}

func (o ControlOptions) withDefaults() ControlOptions {
	if o.Path == "" {
		o.Path = ControlPath
	}
	if o.Workers <= 0 {
		o.Workers = 32
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	return o
}

// DeleteKind says what other commands wait for while a kernel deletes a device.
type DeleteKind int

// The kinds of kernels, as ProbeDeleteKind tells them apart.
const (
	DeleteUnknown DeleteKind = iota
	// DeleteNoWait: deleting does not wait for a grace period at all.
	DeleteNoWait
	// DeleteLocked: it waits, and holds the driver's global mutex meanwhile:
	// deletions queue up behind one another.
	DeleteLocked
	// DeleteUnlocked: it waits, but not under the mutex: deletions scale.
	DeleteUnlocked
)

func (k DeleteKind) String() string {
	switch k {
	case DeleteNoWait:
		return "NOWAIT"
	case DeleteLocked:
		return "LOCKED"
	case DeleteUnlocked:
		return "UNLOCKED"
	}
	return "UNKNOWN"
}

// RingOptions adjust a Ring; the zero value is fine.
type RingOptions struct {
	// Fence is registered with the ring: the kernel holds the file until every
	// file operation of the ring is over, also when the process is killed. Give
	// it the write end of a pipe, and close the caller's own copy once NewRing
	// has returned: the read end then sees EOF when nothing of this ring can
	// reach a file any more. nil means none.
	Fence *os.File
	// Buffers is how many requests can move data at the same time; 0 means
	// 128. Others wait their turn.
	Buffers int
	// BufferBytes is the size of each, at least the MaxIOBytes of every device
	// served; 0 means 512 KiB. Memory is used as it is touched.
	BufferBytes int
	// Entries is the size of the submission queue, a power of two; 0 means 4096.
	Entries int
	// Workers is how many flushes and discards run at once; 0 means 32.
	Workers int
}

func (o RingOptions) withDefaults() RingOptions {
	if o.Buffers <= 0 {
		o.Buffers = 128
	}
	if o.BufferBytes <= 0 {
		o.BufferBytes = DefaultMaxIOBytes
	}
	if o.Entries <= 0 {
		o.Entries = 4096
	}
	if o.Workers <= 0 {
		o.Workers = 32
	}
	return o
}
