//go:build ublk && linux

package ublk

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cycles runs add, serve, start, stop, delete n times on each of some threads,
// and checks that nothing stays behind.
func cycles(t *testing.T, threads, n int, end func(t *testing.T, c *Control, s *served)) {
	t.Helper()
	c := control(t)
	r := newTestRing(t, RingOptions{})
	var all sync.WaitGroup
	for range threads {
		all.Go(func() {
			for range n {
				cycle(t, c, r, end)
			}
		})
	}
	all.Wait()
	if ids, err := Devices(); err != nil || len(ids) != 0 {
		t.Errorf("devices left: %v, %v", ids, err)
	}
	if left, _ := os.ReadDir("/dev"); len(left) > 0 {
		for _, e := range left {
			if len(e.Name()) > 5 && (e.Name()[:5] == "ublkb" || e.Name()[:5] == "ublkc") {
				t.Errorf("/dev/%s is left", e.Name())
			}
		}
	}
}

func cycle(t *testing.T, c *Control, r *Ring, end func(t *testing.T, c *Control, s *served)) {
	ctx := ctxFor(t)
	info, err := c.Add(ctx, DeviceOptions{ID: -1, Depth: 8, Features: c.Features() & NoAutoPartScan})
	if err != nil {
		t.Error(err)
		return
	}
	s := &served{DeviceInfo: info, c: c, gone: true}
	if err := c.SetParams(ctx, info.ID, ramParams(1<<20)); err != nil {
		t.Error(err)
	}
	if s.dev, err = OpenDevice(info); err != nil {
		t.Error(err)
		return
	}
	if err := s.dev.Serve(0, r, Null(), nil); err != nil {
		t.Error(err)
	}
	if err := c.Start(ctx, info.ID, os.Getpid()); err != nil {
		t.Error(err)
	}
	if err := c.Stop(ctx, info.ID); err != nil {
		t.Error(err)
	}
	select {
	case <-s.dev.Done():
	case <-time.After(20 * time.Second):
		t.Errorf("device %d: tags not aborted", info.ID)
		return
	}
	end(t, c, s)
}

func TestHundredCyclesOnEightThreads(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, c *Control, s *served){
		"close, then delete": func(t *testing.T, c *Control, s *served) {
			if err := s.dev.Close(); err != nil {
				t.Error(err)
			}
			if err := c.Delete(ctxFor(t), s.ID); err != nil {
				t.Error(err)
			}
		},
		"delete while open, then close": func(t *testing.T, c *Control, s *served) {
			if err := c.DeleteAsync(ctxFor(t), s.ID); err != nil {
				t.Error(err)
			}
			if err := s.dev.Close(); err != nil {
				t.Error(err)
			}
			waitGone(t, s.DeviceInfo)
		},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			cycles(t, 8, 13, end)
			t.Logf("104 cycles in %v", time.Since(begin))
		})
	}
}

func TestTwoHundredDevicesOnOneRing(t *testing.T) {
	c := control(t)
	r := newTestRing(t, RingOptions{})
	const n = 200
	before := threads(t)
	list := make([]*served, n)
	for i := range list {
		m := newRAM(1 << 20)
		m.b[4096] = byte(i)
		list[i] = serve(t, c, r, DeviceOptions{ID: -1, Depth: 32}, ramParams(1<<20), FromBackend(m))
	}
	t.Logf("%d threads for %d devices", threads(t)-before, n)
	if more := threads(t) - before; more > 60 {
		t.Errorf("%d more threads: one a device?", more)
	}
	b := aligned(t, 4096)
	for round := range 3 {
		for i, s := range list {
			f, err := os.OpenFile(s.BlockPath(), os.O_RDWR|unix.O_DIRECT, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.ReadAt(b, 4096); err != nil || b[0] != byte(i+round) {
				t.Errorf("device %d: read %d, %v", i, b[0], err)
			}
			b[0] = byte(i + round + 1)
			if _, err := f.WriteAt(b, 4096); err != nil {
				t.Error(err)
			}
			f.Close()
		}
	}
}

func threads(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

func TestSizeOfALiveDiskChanges(t *testing.T) {
	c := control(t)
	target, file := fileTarget(t, newFS(t, "xfs").dir, 4<<20, true)
	s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, target.Info().Params(), target)
	err := c.UpdateSize(ctxFor(t), s.ID, 8<<20/512)
	if !c.Features().Has(UpdateSize) {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a kernel that cannot: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Truncate(8 << 20); err != nil {
		t.Fatal(err)
	}
	f := s.disk(t)
	if n, err := f.Seek(0, 2); err != nil || n != 8<<20 {
		t.Errorf("size %d, %v", n, err)
	}
	b := aligned(t, 4096)
	stamp(b, 1)
	if _, err := f.WriteAt(b, 8<<20-4096); err != nil {
		t.Error(err)
	}
	if _, err := f.WriteAt(b, 8<<20); err == nil {
		t.Error("wrote behind the end")
	}
	if p := testParams(t, s); p.Sectors != 8<<20/512 {
		t.Errorf("%d sectors", p.Sectors)
	}
}

// Requests in flight when the disk goes away are answered first.
func TestStopUnderLoad(t *testing.T) {
	c := control(t)
	for range 10 {
		target, _ := fileTarget(t, t.TempDir(), 4<<20, false)
		s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, target.Info().Params(), target)
		var all sync.WaitGroup
		for range 4 {
			f, err := os.OpenFile(s.BlockPath(), os.O_RDWR|unix.O_DIRECT, 0)
			if err != nil {
				t.Fatal(err)
			}
			b := aligned(t, 4096)
			all.Go(func() {
				defer f.Close()
				for i := int64(0); ; i++ {
					if _, err := f.WriteAt(b, i%1024*4096); err != nil {
						// The disk has no bytes any more (ENOSPC), or is gone.
						if !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.ENODEV) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		s.down(t)
		all.Wait()
	}
}

// A server of the same process can hand a device to another ring by quiescing.
func TestQuiesceHandsOverWithoutAnError(t *testing.T) {
	c := control(t)
	if err := c.Features().Require(Quiesce); err != nil {
		if err := c.Quiesce(ctxFor(t), 0, time.Second); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a kernel that cannot: %v", err)
		}
		return
	}
	m := newRAM(4 << 20)
	s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(4<<20), FromBackend(m))
	f, err := os.OpenFile(s.BlockPath(), os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	stop, failed := make(chan struct{}), make(chan error, 1)
	b := aligned(t, 4096)
	go func() {
		defer f.Close()
		for {
			select {
			case <-stop:
				failed <- nil
				return
			default:
			}
			if _, err := f.WriteAt(b, 0); err != nil {
				failed <- err
				return
			}
		}
	}()
	other := newTestRing(t, RingOptions{})
	t.Cleanup(func() { s.down(t) }) // before other is closed
	for range 5 {
		waitFor(t, "the tags to come back", func() bool {
			if err := c.Quiesce(ctxFor(t), s.ID, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			select {
			case <-s.dev.Done():
				return true
			case <-time.After(10 * time.Millisecond):
				return false
			}
		})
		if err := s.dev.Close(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "recovery to begin", func() bool {
			err := c.StartRecovery(ctxFor(t), s.ID)
			if err != nil && !errors.Is(err, unix.EBUSY) {
				t.Fatal(err)
			}
			return err == nil
		})
		s.open(t, other, FromBackend(m))
		if err := c.EndRecovery(ctxFor(t), s.ID, os.Getpid()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("I/O failed: %v", err)
	}
}

// Once things are warm, serving allocates nothing.
func TestServingDoesNotAllocate(t *testing.T) {
	c := control(t)
	target, _ := fileTarget(t, newFS(t, "xfs").dir, 4<<20, true)
	for name, target := range map[string]Target{"file": target, "memory": FromBackend(newRAM(4 << 20)), "null": Null()} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(4<<20), target)
			f := s.disk(t)
			fd, b := int(f.Fd()), aligned(t, 64<<10)
			io := func(n int) {
				for i := range n {
					off := int64(i%64) * 4096
					if _, err := unix.Pwrite(fd, b[:4096], off); err != nil {
						t.Fatal(err)
					}
					if _, err := unix.Pread(fd, b, off); err != nil {
						t.Fatal(err)
					}
				}
			}
			io(200)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			const n = 2000
			io(n)
			runtime.ReadMemStats(&after)
			// The runtime itself allocates now and then.
			if a := after.Mallocs - before.Mallocs; a > n/50 {
				t.Errorf("%d allocations for %d requests", a, 2*n)
			} else {
				t.Logf("%d allocations for %d requests", a, 2*n)
			}
		})
	}
}
