package ublk

import "os"

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
