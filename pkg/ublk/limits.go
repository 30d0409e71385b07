package ublk

import (
	"sync/atomic"
	"time"
)

// Limits bound a device's rates; 0 means that there is no such limit. A request counts
// against every limit of its direction and against those of both. Only reads and writes
// count and wait: a flush or a discard moves no bytes, and to delay it would delay the
// writes that wait for it.
type Limits struct {
	IOPS, ReadIOPS, WriteIOPS    uint64 // requests a second
	Bytes, ReadBytes, WriteBytes uint64 // bytes a second
	// Burst is for how long an idle device saves up its rates; 0 means DefaultBurst. A
	// request passes whatever its size is as soon as nothing is owed, and those after it
	// wait for as long as it is worth.
	Burst time.Duration
}

// DefaultBurst is far above what a thread may wake too late, which would cost rate, and far
// below what a user would see as a burst.
const DefaultBurst = 100 * time.Millisecond

// direction is the index of a limit; both has no requests.
type direction uint8

const (
	reading direction = iota
	writing
	both
)

// A limiter is the state of a device's limits. The rings of the device share it: each may
// let a request through on the same token, which then is owed.
type limiter struct {
	ops, bytes [3]bucket
	burst      int64
}

// A bucket holds what may be spent. It is empty at the time of zero, fills at its rate, and
// holds what comes in during the burst. A request is let through if it is not below empty,
// and takes it there.
type bucket struct {
	rate uint64       // a second; 0 means no limit
	zero atomic.Int64 // nanoseconds, of the clock that take is told
}

// newLimiter returns one that is empty now, so that limits that change often give nothing
// away. Without any limit it is nil.
func newLimiter(o Limits, now int64) *limiter {
	if o.Burst <= 0 {
		o.Burst = DefaultBurst
	}
	l := &limiter{burst: int64(o.Burst)}
	limited := false
	for _, b := range []struct {
		bucket *bucket
		rate   uint64
	}{
		{&l.ops[both], o.IOPS}, {&l.ops[reading], o.ReadIOPS}, {&l.ops[writing], o.WriteIOPS},
		{&l.bytes[both], o.Bytes}, {&l.bytes[reading], o.ReadBytes}, {&l.bytes[writing], o.WriteBytes},
	} {
		b.bucket.rate = b.rate
		b.bucket.zero.Store(now)
		limited = limited || b.rate != 0
	}
	if !limited {
		return nil
	}
	return l
}

// take lets a request of n bytes through, or says when to ask again.
func (l *limiter) take(d direction, n uint64, now int64) (due int64, ok bool) {
	due = max(l.ops[both].due(), l.ops[d].due(), l.bytes[both].due(), l.bytes[d].due())
	if due > now {
		return due, false
	}
	l.ops[both].spend(1, now, l.burst)
	l.ops[d].spend(1, now, l.burst)
	l.bytes[both].spend(n, now, l.burst)
	l.bytes[d].spend(n, now, l.burst)
	return 0, true
}

// due is when nothing is owed any more.
func (b *bucket) due() int64 {
	if b.rate == 0 {
		return 0
	}
	return b.zero.Load()
}

func (b *bucket) spend(n uint64, now, burst int64) {
	if b.rate == 0 {
		return
	}
	cost := int64((n*uint64(time.Second) + b.rate - 1) / b.rate)
	for {
		old := b.zero.Load()
		if b.zero.CompareAndSwap(old, max(old, now-burst)+cost) {
			return
		}
	}
}
