package ublk

import (
	"math"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// SetLimits replaces the device's limits; they count from then on, also for requests that
// wait already. The same limits again change nothing. It does not block. Control.Stop waits
// for requests that wait because of limits: lift them first.
func (d *Device) SetLimits(l Limits) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l == d.limits {
		return
	}
	d.limits = l
	d.limiter.Store(newLimiter(l, clock()))
	for _, q := range d.queues {
		q.ring.post(0, q.wakeThrottled)
	}
}

// never is a time that does not come.
const never = math.MaxInt64

// A throttle are the requests of a queue that wait because of limits. Reads do not wait for
// writes that have used up theirs, nor the other way round.
type throttle struct {
	waiting [2]fifo
	due     int64      // when to look again
	next    *ringQueue // in Ring.throttled
	listed  bool
}

func directionOf(op uint8) (direction, bool) {
	switch op {
	case sys.OpRead:
		return reading, true
	case sys.OpWrite:
		return writing, true
	}
	return both, false
}

// admit begins a request as soon as the limits allow.
func (q *ringQueue) admit(r *Ring, t *tag) {
	if l := q.device.limiter.Load(); l != nil {
		if d, limited := directionOf(t.op); limited {
			line := &q.throttle.waiting[d]
			due := q.throttle.due // behind those that wait already
			if line.head == nil {
				var ok bool
				if due, ok = l.take(d, t.length, r.now); ok {
					q.start(r, t)
					return
				}
			}
			t.phase = waiting
			line.push(t)
			q.wakeAt(due)
			return
		}
	}
	q.start(r, t)
}

// wakeAt has the ring look at the queue's waiting requests at that time, or earlier.
func (q *ringQueue) wakeAt(due int64) {
	r, w := q.ring, &q.throttle
	if !w.listed {
		w.listed, w.due = true, never
		w.next, r.throttled = r.throttled, q
	}
	w.due = min(w.due, due)
	r.due = min(r.due, w.due)
}

// wakeThrottled looks at them now.
func (q *ringQueue) wakeThrottled() {
	if q.throttle.listed {
		q.wakeAt(q.ring.now)
	}
}

// startThrottled begins the requests whose time has come, and notes when it is for the next.
func (r *Ring) startThrottled() {
	if r.now < r.due {
		return
	}
	r.due = never
	for p := &r.throttled; *p != nil; {
		q := *p
		w := &q.throttle
		if w.due <= r.now {
			w.due = q.pass(r)
		}
		if w.waiting[reading].head == nil && w.waiting[writing].head == nil {
			*p, w.next, w.listed = w.next, nil, false
			continue
		}
		r.due = min(r.due, w.due)
		p = &w.next
	}
}

// pass begins what the limits let pass and returns when to look again. Who came first goes
// first; if its own direction stops it, the other direction may go on.
func (q *ringQueue) pass(r *Ring) int64 {
	if q.hold != nil {
		return never
	}
	l := q.device.limiter.Load()
	w := &q.throttle.waiting
	first := reading
	due := int64(never)
	for stopped := 0; stopped < 2; {
		if h := w[first^1].head; h != nil && stopped == 0 && (w[first].head == nil || h.begun < w[first].head.begun) {
			first ^= 1
		}
		t := w[first].head
		if t == nil {
			return due
		}
		if l != nil {
			at, ok := l.take(first, t.length, r.now)
			if !ok {
				due = min(due, at)
				stopped++
				first ^= 1
				continue
			}
		}
		w[first].pop()
		q.counters.ThrottledNanos.Add(uint64(r.now - max(t.begun, q.opened)))
		q.start(r, t)
	}
	return due
}

// wait blocks until there is a completion, or a throttled request's time has come.
func (r *Ring) wait() error {
	if r.due == never {
		return r.ring.Wait()
	}
	if d := r.due - clock(); d > 0 {
		return r.ring.WaitFor(d)
	}
	return nil
}
