//go:build ublk && linux

package ublk

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A stuckDisk answers no write until it is let go.
type stuckDisk struct {
	*ram
	entered chan struct{}
	let     chan struct{}
	writes  atomic.Int64
}

func (m *stuckDisk) WriteAt(p []byte, off int64) (int, error) {
	if m.writes.Add(1) == 1 && m.entered != nil {
		close(m.entered)
		<-m.let
	}
	return m.ram.WriteAt(p, off)
}

// serveOn spreads the queues over the rings.
func (s *served) openOn(t testing.TB, rings []*Ring, target Target) {
	t.Helper()
	var err error
	if s.dev, err = OpenDevice(s.DeviceInfo); err != nil {
		t.Fatal(err)
	}
	for q := range s.Queues {
		if err := s.dev.Serve(q, rings[int(q)%len(rings)], target, s.counters); err != nil {
			t.Fatal(err)
		}
	}
}

// serveQueues is serve of a device with a queue on each of n rings. The kernel has as many
// queues as it has CPUs, at most.
func serveQueues(t testing.TB, n int, p Params, target Target) *served {
	t.Helper()
	c, ctx := control(t), ctxFor(t)
	info := add(t, c, DeviceOptions{ID: -1, Queues: uint16(n), Features: c.Features() & NoAutoPartScan})
	if err := c.SetParams(ctx, info.ID, p); err != nil {
		t.Fatal(err)
	}
	rings := make([]*Ring, n)
	for i := range rings {
		rings[i] = newTestRing(t, RingOptions{})
	}
	s := &served{DeviceInfo: info, c: c, counters: new(Counters)}
	s.openOn(t, rings, target)
	if err := c.Start(ctx, info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.down(t) })
	return s
}

func TestAHoldWaitsForWhatHasBegunAndKeepsTheRest(t *testing.T) {
	const size = 4 << 20
	m := &stuckDisk{ram: newRAM(size), entered: make(chan struct{}), let: make(chan struct{})}
	s := serve(t, control(t), newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(size), FromBackend(m))
	f, b := s.disk(t), aligned(t, 4096)
	var writers sync.WaitGroup
	write := func(off int64) {
		writers.Go(func() {
			if _, err := f.WriteAt(b, off); err != nil {
				t.Error(err)
			}
		})
	}
	write(0)
	<-m.entered
	held := make(chan error, 1)
	go func() { held <- s.dev.Hold(ctxFor(t), time.Minute) }()
	select {
	case err := <-held:
		t.Fatalf("held (%v) while a write is under way", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(m.let)
	if err := <-held; err != nil {
		t.Fatal(err)
	}
	if err := s.dev.Hold(ctxFor(t), time.Minute); !errors.Is(err, ErrBusy) {
		t.Errorf("a second hold: %v, want busy", err)
	}
	for i := range int64(8) {
		write(i << 16)
	}
	flushed := make(chan error, 1)
	go func() { flushed <- f.Sync() }()
	time.Sleep(200 * time.Millisecond)
	if n := m.writes.Load(); n != 1 {
		t.Errorf("%d writes reached the target of a held device, want the one before", n)
	}
	if len(flushed) != 0 {
		t.Error("a flush was answered by a held device")
	}
	if err := s.dev.Resume(); err != nil {
		t.Error(err)
	}
	writers.Wait()
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	if n := m.writes.Load(); n != 9 {
		t.Errorf("%d writes in the end, want 9", n)
	}
	if err := s.dev.Resume(); !errors.Is(err, ErrNotHeld) {
		t.Errorf("resumed twice: %v", err)
	}
}

func TestAHoldThatComesTooLateLeavesNothingHeld(t *testing.T) {
	const size = 1 << 20
	m := &stuckDisk{ram: newRAM(size), entered: make(chan struct{}), let: make(chan struct{})}
	s := serve(t, control(t), newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(size), FromBackend(m))
	f, b := s.disk(t), aligned(t, 4096)
	written := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(b, 0)
		written <- err
	}()
	<-m.entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.dev.Hold(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hold: %v, want the deadline", err)
	}
	close(m.let)
	if err := <-written; err != nil {
		t.Error(err)
	}
	if _, err := f.WriteAt(b, 8192); err != nil {
		t.Error(err)
	}
}

// Whoever holds a device may die: nothing must wait for it for ever, and it must not
// believe that the target was still if it was not.
func TestAHoldEndsByItself(t *testing.T) {
	s := serve(t, control(t), newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(1<<20), FromBackend(newRAM(1<<20)))
	f, b := s.disk(t), aligned(t, 4096)
	begin := time.Now()
	if err := s.dev.Hold(ctxFor(t), 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Error(err)
	}
	if d := time.Since(begin); d < 300*time.Millisecond || d > 10*time.Second {
		t.Errorf("the read took %v", d)
	}
	if err := s.dev.Resume(); !errors.Is(err, ErrNotHeld) {
		t.Errorf("resume after the end: %v, want that it was not held", err)
	}
}

func TestStopOfAHeldDeviceEndsWithTheHold(t *testing.T) {
	c := control(t)
	s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(1<<20), FromBackend(newRAM(1<<20)))
	f, b := s.disk(t), aligned(t, 4096)
	if err := s.dev.Hold(ctxFor(t), 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := f.ReadAt(b, 0)
		read <- err
	}()
	time.Sleep(50 * time.Millisecond)
	if err := c.Stop(ctxFor(t), s.ID); err != nil {
		t.Error(err)
	}
	if err := <-read; err != nil {
		t.Errorf("a request of before the stop: %v", err)
	}
	f.Close()
	s.waitDone(t)
	if err := s.dev.Hold(ctxFor(t), time.Minute); !errors.Is(err, os.ErrClosed) {
		t.Errorf("hold of a stopped device: %v", err)
	}
}

// Two writers on two CPUs, so on two queues and two rings: while the device is held no
// byte of the target changes.
func TestAHoldStopsEveryQueue(t *testing.T) {
	const size = 8 << 20
	target, file := fileTarget(t, newFS(t, "xfs").dir, size, true)
	s := serveQueues(t, 2, target.Info().Params(), target)
	t.Logf("%d queues", s.Queues)
	var writers sync.WaitGroup
	var stop atomic.Bool
	var done atomic.Int64
	for w := range 4 {
		f, b := s.disk(t), aligned(t, 4096)
		writers.Go(func() {
			for i := 0; !stop.Load(); i++ {
				stamp(b, uint64(i))
				if _, err := f.WriteAt(b, int64(w)<<20+int64(i%64)*4096); err != nil {
					t.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	look := func(b []byte) {
		if _, err := file.ReadAt(b, 0); err != nil {
			t.Error(err)
		}
	}
	one, two := aligned(t, 4<<20), aligned(t, 4<<20)
	var longest time.Duration
	for range 30 {
		begin, before := time.Now(), done.Load()
		if err := s.dev.Hold(ctxFor(t), time.Minute); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(begin))
		look(one)
		time.Sleep(2 * time.Millisecond)
		look(two)
		if string(one) != string(two) {
			t.Error("the target changed while the device was held")
		}
		if err := s.dev.Resume(); err != nil {
			t.Error(err)
		}
		waitFor(t, "writes to go on", func() bool { return done.Load() > before+8 })
	}
	stop.Store(true)
	writers.Wait()
	t.Logf("held within %v at most, %d writes", longest, done.Load())
}

// With QUIESCE the tags at rest end at once and the kept ones when they are answered.
func TestAHeldDeviceCanBeQuiesced(t *testing.T) {
	c := control(t)
	if !c.Features().Has(Quiesce) {
		t.Logf("this kernel has no QUIESCE: nothing to hold back")
		return
	}
	r := newTestRing(t, RingOptions{})
	m := newRAM(1 << 20)
	s := serve(t, c, r, DeviceOptions{ID: -1}, ramParams(1<<20), FromBackend(m))
	f, b := s.disk(t), aligned(t, 4096)
	if err := s.dev.Hold(ctxFor(t), 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := f.ReadAt(b, 0)
		read <- err
	}()
	time.Sleep(50 * time.Millisecond)
	waitFor(t, "the tags to end", func() bool {
		if err := c.Quiesce(ctxFor(t), s.ID, time.Second); err != nil && !errors.Is(err, unix.EBUSY) {
			t.Error(err)
		}
		return s.dev.isDone()
	})
	if err := s.dev.Close(); err != nil {
		t.Error(err)
	}
	waitFor(t, "the recovery to start", func() bool {
		err := c.StartRecovery(ctxFor(t), s.ID)
		if err != nil && !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
		return err == nil
	})
	s.open(t, r, FromBackend(m))
	if err := c.EndRecovery(ctxFor(t), s.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
}
