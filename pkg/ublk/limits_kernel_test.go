//go:build ublk && linux

package ublk

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// load reads and writes from many goroutines until stop.
type load struct {
	reads, writes         atomic.Int64
	readBytes, writeBytes atomic.Int64
	stop                  atomic.Bool
	all                   sync.WaitGroup
}

func startLoad(t *testing.T, s *served, readers, writers, size int) *load {
	t.Helper()
	l := &load{}
	for i := range readers + writers {
		f, err := os.OpenFile(s.BlockPath(), os.O_RDWR|unix.O_DIRECT, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := aligned(t, size)
		l.all.Go(func() {
			defer f.Close()
			// Every CPU has a queue of its own if there are several.
			runtime.LockOSThread()
			var cpu unix.CPUSet
			cpu.Set(i % runtime.NumCPU())
			if err := unix.SchedSetaffinity(0, &cpu); err != nil {
				t.Error(err)
			}
			for !l.stop.Load() {
				var err error
				if i < readers {
					_, err = f.ReadAt(b, int64(i%8)<<20)
					l.reads.Add(1)
					l.readBytes.Add(int64(size))
				} else {
					_, err = f.WriteAt(b, int64(i%8)<<20)
					l.writes.Add(1)
					l.writeBytes.Add(int64(size))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return l
}

func (l *load) end() {
	l.stop.Store(true)
	l.all.Wait()
}

// rate is by how much a sum grows in a second.
func rate(d time.Duration, sum func() int64) float64 {
	time.Sleep(100 * time.Millisecond) // what the burst let through is gone
	begin, before := time.Now(), sum()
	time.Sleep(d)
	return float64(sum()-before) / time.Since(begin).Seconds()
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	t.Logf("%s: %.0f a second, limit %.0f (%+.1f %%)", what, got, want, 100*(got/want-1))
	if got < 0.9*want || got > 1.1*want {
		t.Errorf("%s: %.0f a second, want %.0f within 10 %%", what, got, want)
	}
}

const limitsTestSize = 16 << 20

// patience is a burst that makes up for a machine that stands still for a moment. The load
// never lets it be saved up.
const patience = time.Second

func TestLimitsHoldAndChangeLive(t *testing.T) {
	s := serveQueues(t, 2, ramParams(limitsTestSize), FromBackend(newRAM(limitsTestSize)))
	t.Logf("%d queues", s.Queues)
	l := startLoad(t, s, 4, 4, 4096)
	s.dev.SetLimits(Limits{IOPS: 400, Burst: patience})
	all := func() int64 { return l.reads.Load() + l.writes.Load() }
	near(t, "requests in total", rate(3*time.Second, all), 400)
	l.reads.Store(0)
	l.writes.Store(0)
	time.Sleep(time.Second)
	if r, w := l.reads.Load(), l.writes.Load(); r < w/3 || w < r/3 {
		t.Errorf("%d reads and %d writes share one limit", r, w)
	}

	s.dev.SetLimits(Limits{ReadIOPS: 100, WriteIOPS: 300, Burst: patience})
	near(t, "reads of their own", rate(2*time.Second, l.reads.Load), 100)
	near(t, "writes of their own", rate(2*time.Second, l.writes.Load), 300)
	if s.counters.ThrottledNanos.Load() < uint64(time.Second) {
		t.Errorf("eight requests at a time waited for %d ns in sum", s.counters.ThrottledNanos.Load())
	}

	s.dev.SetLimits(Limits{WriteIOPS: 1})
	before := l.reads.Load()
	time.Sleep(200 * time.Millisecond)
	if n := l.reads.Load() - before; n < 50 {
		t.Errorf("%d reads in 200 ms: they wait for limited writes", n)
	}
	s.dev.SetLimits(Limits{})
	waited := s.counters.ThrottledNanos.Load()
	before = l.writes.Load()
	time.Sleep(200 * time.Millisecond)
	if n := l.writes.Load() - before; n < 50 {
		t.Errorf("%d writes in 200 ms without limits: those of before still wait", n)
	}
	l.end()
	if n := s.counters.ThrottledNanos.Load(); n > waited+uint64(8*time.Second) {
		t.Errorf("requests waited for %d ns more without limits", n-waited)
	}
}

func TestBandwidthIsLimitedAlsoBelowARequest(t *testing.T) {
	s := serveQueues(t, 2, ramParams(limitsTestSize), FromBackend(newRAM(limitsTestSize)))
	l := startLoad(t, s, 4, 4, 64<<10)
	s.dev.SetLimits(Limits{Bytes: 8 << 20, WriteBytes: 2 << 20, Burst: patience})
	near(t, "bytes in total", rate(2*time.Second, func() int64 { return l.readBytes.Load() + l.writeBytes.Load() }), 8<<20)
	near(t, "bytes written", rate(2*time.Second, l.writeBytes.Load), 2<<20)
	l.end()

	// Requests of 256 KiB, 50 KiB to be saved up. One more or less at the edges of the
	// time that is measured makes 6 %.
	s.dev.SetLimits(Limits{ReadBytes: 1 << 20, Burst: 50 * time.Millisecond})
	l = startLoad(t, s, 2, 0, 256<<10)
	near(t, "bytes in requests above the burst", rate(4*time.Second, l.readBytes.Load), 1<<20)
	l.end()
}

// A held device begins nothing, even if its time has come.
func TestLimitsAndAHoldTogether(t *testing.T) {
	m := &stuckDisk{ram: newRAM(limitsTestSize)}
	s := serveQueues(t, 2, ramParams(limitsTestSize), FromBackend(m))
	l := startLoad(t, s, 0, 6, 4096)
	s.dev.SetLimits(Limits{WriteIOPS: 200, Burst: patience})
	for range 5 {
		time.Sleep(50 * time.Millisecond)
		if err := s.dev.Hold(ctxFor(t), time.Minute); err != nil {
			t.Fatal(err)
		}
		before := m.writes.Load()
		time.Sleep(100 * time.Millisecond)
		if n := m.writes.Load() - before; n != 0 {
			t.Errorf("%d limited writes began while the device was held", n)
		}
		if err := s.dev.Resume(); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(500 * time.Millisecond) // the holds have saved up a little
	near(t, "writes after holds", rate(2*time.Second, l.writes.Load), 200)
	l.end()
}

func TestServingWithLimitsAllocatesNothing(t *testing.T) {
	target, _ := fileTarget(t, newFS(t, "xfs").dir, 4<<20, true)
	s := serve(t, control(t), newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, target.Info().Params(), target)
	s.dev.SetLimits(Limits{IOPS: 2000, Bytes: 1 << 30, Burst: time.Millisecond})
	f, b := s.disk(t), aligned(t, 4096)
	time.Sleep(100 * time.Millisecond)
	if n := testing.AllocsPerRun(200, func() {
		if _, err := f.WriteAt(b, 4096); err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(b, 4096); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a write and a read", n)
	}
	if s.counters.ThrottledNanos.Load() == 0 {
		t.Error("no request was throttled: the test shows nothing")
	}
}
