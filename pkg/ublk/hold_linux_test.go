package ublk

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// onRings is a device with a queue on each of n rings, without a kernel: what the test does
// to a queue it does on the ring's thread.
func onRings(t *testing.T, n int) (*Device, func(queue int, f func(*ringQueue))) {
	t.Helper()
	d := &Device{done: make(chan struct{})}
	for range n {
		r, err := NewRing(RingOptions{Buffers: 1, Entries: 8})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		d.queues = append(d.queues, &ringQueue{device: d, ring: r, counters: new(Counters)})
	}
	return d, func(i int, f func(*ringQueue)) {
		ran := make(chan struct{})
		d.queues[i].ring.post(0, func() { f(d.queues[i]); close(ran) })
		<-ran
	}
}

func TestAHoldWaitsForTheQueuesOfAllRings(t *testing.T) {
	d, on := onRings(t, 3)
	on(1, func(q *ringQueue) { q.inFlight = 2 })
	on(2, func(q *ringQueue) { q.inFlight = 1 })
	held := make(chan error, 1)
	go func() { held <- d.Hold(t.Context(), time.Minute) }()
	still := func(when string) {
		t.Helper()
		select {
		case err := <-held:
			t.Fatalf("held (%v) %s", err, when)
		case <-time.After(30 * time.Millisecond):
		}
	}
	still("with three requests in flight")
	on(1, (*ringQueue).ended)
	on(2, (*ringQueue).ended)
	still("with one in flight")
	on(1, (*ringQueue).ended)
	if err := <-held; err != nil {
		t.Fatal(err)
	}
	for i := range d.queues {
		on(i, func(q *ringQueue) {
			if q.hold == nil {
				t.Errorf("queue %d is not held", i)
			}
		})
	}
	if err := d.Resume(); err != nil {
		t.Error(err)
	}
	for i := range d.queues {
		on(i, func(q *ringQueue) {
			if q.hold != nil {
				t.Errorf("queue %d is held after all", i)
			}
		})
	}
}

// A hold that was given up must not end the one that followed it.
func TestHoldsOneAfterAnother(t *testing.T) {
	d, on := onRings(t, 2)
	on(0, func(q *ringQueue) { q.inFlight = 1 })
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Hold(ctx, time.Minute); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	on(0, (*ringQueue).ended)
	if err := d.Hold(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := d.Resume(); err != nil {
		t.Fatal(err)
	}
}

func TestTwoRingsShareOneLimit(t *testing.T) {
	begin := clock()
	end := begin + int64(time.Second)
	l := newLimiter(Limits{IOPS: 2000, Burst: time.Second}, begin)
	var all sync.WaitGroup
	counts := make([]int, 2)
	for i := range counts {
		all.Go(func() {
			for {
				// However late a thread is, nothing is taken that is not due by the end.
				due, ok := l.take(reading, 4096, min(clock(), end))
				switch {
				case ok:
					counts[i]++
				case due > end:
					return
				default:
					time.Sleep(time.Duration(due - clock()))
				}
			}
		})
	}
	all.Wait()
	if n := counts[0] + counts[1]; n < 1995 || n > 2010 {
		t.Errorf("%v requests in a second, want 2000 together", counts)
	}
}
