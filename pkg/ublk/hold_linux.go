package ublk

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// A hold is one call of Device.Hold, until it is resumed.
type hold struct {
	busy   atomic.Int32  // queues that have requests in flight
	still  chan struct{} // closed when none has
	ended  chan struct{} // closed when it is over
	expiry *time.Timer
}

func (h *hold) arrive() {
	if h.busy.Add(-1) == 0 {
		close(h.still)
	}
}

// Hold keeps back every request that comes from now on, of all queues, and returns when
// those that had begun are answered: the target is still then. If that takes until ctx is
// done everything goes on, and the error is the context's. A device that is held already
// gives ErrBusy.
//
// A held device does not answer, and so the kernel waits for it: Control.Stop does not
// return, nor does anything that the disk's users have begun. The hold therefore ends by
// itself after atMost, and Resume says so.
func (d *Device) Hold(ctx context.Context, atMost time.Duration) error {
	h := &hold{still: make(chan struct{}), ended: make(chan struct{})}
	if err := d.beginHold(h, atMost); err != nil {
		return opError("hold", int64(d.info.ID), err)
	}
	var err error
	select {
	case <-h.still:
	case <-h.ended:
		err = ErrNotHeld
	case <-d.done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if d.isDone() {
		err = fmt.Errorf("the device is being stopped: %w", os.ErrClosed)
	}
	if err != nil {
		d.endHold(h)
	}
	return opError("hold", int64(d.info.ID), err)
}

func (d *Device) beginHold(h *hold, atMost time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.hold != nil:
		return fmt.Errorf("it is held already: %w", ErrBusy)
	case d.closed || len(d.queues) == 0:
		return os.ErrClosed
	}
	d.hold = h
	h.busy.Store(int32(len(d.queues)))
	h.expiry = time.AfterFunc(atMost, func() { d.endHold(h) })
	for _, q := range d.queues {
		if !q.ring.post(0, func() { q.beginHold(h) }) {
			h.arrive()
		}
	}
	return nil
}

// Resume lets a held device go on: requests that were kept begin in the order in which they
// came. ErrNotHeld means that it had gone on before, so that its target may have changed
// since Hold returned. It does not block.
func (d *Device) Resume() error {
	d.mu.Lock()
	h := d.hold
	d.mu.Unlock()
	if h == nil || !d.endHold(h) {
		return opError("resume", int64(d.info.ID), ErrNotHeld)
	}
	return nil
}

// endHold reports whether it was this call that ended the hold.
func (d *Device) endHold(h *hold) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hold != h {
		return false
	}
	d.hold = nil
	h.expiry.Stop()
	close(h.ended)
	for _, q := range d.queues {
		q.ring.post(0, func() { q.endHold(h) })
	}
	return true
}

// beginHold runs on the ring's thread, as everything below.
func (q *ringQueue) beginHold(h *hold) {
	q.hold = h
	if q.inFlight == 0 {
		h.arrive()
	}
}

func (q *ringQueue) endHold(h *hold) {
	if q.hold != h {
		return
	}
	q.hold, q.opened = nil, q.ring.now
	q.wakeThrottled() // they came before those that were kept
	for q.kept.head != nil {
		q.admit(q.ring, q.kept.pop())
	}
}

// arrive lets a new request begin, if nothing keeps it back.
func (q *ringQueue) arrive(r *Ring, t *tag) {
	if q.hold != nil {
		t.phase = waiting
		q.kept.push(t)
		return
	}
	q.admit(r, t)
}

// ended counts a request that is answered.
func (q *ringQueue) ended() {
	q.inFlight--
	if q.inFlight == 0 && q.hold != nil {
		q.hold.arrive()
	}
}
