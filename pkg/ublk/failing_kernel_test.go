//go:build ublk && linux

package ublk

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFlushAndDurableWritesReachTheFile(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		t.Run(fs, func(t *testing.T) {
			c := control(t)
			v := newFS(t, fs)
			target, file := fileTarget(t, v.dir, 4<<20, true)
			// Written and synced before: from now on only the device asks for
			// flushes of the disk.
			b := aligned(t, 4<<20)
			if _, err := file.WriteAt(b, 0); err != nil {
				t.Fatal(err)
			}
			if err := file.Sync(); err != nil {
				t.Fatal(err)
			}
			s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, target.Info().Params(), target)
			f := s.disk(t)
			before := v.flushes(t)
			if _, err := f.WriteAt(b[:4096], 0); err != nil {
				t.Fatal(err)
			}
			if n := v.flushes(t) - before; n != 0 {
				t.Fatalf("a plain write made %d flushes", n)
			}
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
			if n := v.flushes(t) - before; n == 0 || s.counters.Flushes.Load() == 0 {
				t.Errorf("a flush made %d, %d were counted", n, s.counters.Flushes.Load())
			}
			// The kernel may send a flush of its own after a durable write: the
			// write must be durable without it.
			before, flushed := v.flushes(t), s.counters.Flushes.Load()
			if err := writeDurably(f, b[:4096], 8192); err != nil {
				t.Fatal(err)
			}
			own := int(s.counters.Flushes.Load() - flushed)
			if n := v.flushes(t) - before; n <= own || s.counters.FUAWrites.Load() != 1 {
				t.Errorf("a durable write and %d flushes made %d on the disk, %d were counted", own, n, s.counters.FUAWrites.Load())
			}
		})
	}
}

// A volume's file may be shorter than its disk, or end in the middle of a
// block: what is not there reads as zero.
func TestReadingPastTheEndOfTheFile(t *testing.T) {
	c := control(t)
	for name, direct := range map[string]bool{"direct": true, "buffered": false} {
		t.Run(name, func(t *testing.T) {
			target, file := fileTarget(t, newFS(t, "xfs").dir, 4<<20, direct)
			s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, target.Info().Params(), target)
			f := s.disk(t)
			b, want := aligned(t, 256<<10), make([]byte, 256<<10)
			stamp(b, 5)
			if _, err := f.WriteAt(b, 0); err != nil {
				t.Fatal(err)
			}
			const end = 100<<10 + 77
			copy(want, b[:end])
			if err := file.Truncate(end); err != nil {
				t.Fatal(err)
			}
			for _, off := range []int64{0, 96 << 10, 100 << 10, 104 << 10, 1 << 20} {
				got := b[:64<<10]
				stamp(got, 6) // stale bytes must not come back
				if _, err := f.ReadAt(got, off); err != nil {
					t.Fatal(err)
				}
				w := make([]byte, len(got))
				if off < int64(len(want)) {
					copy(w, want[off:])
				}
				if !bytes.Equal(got, w) {
					t.Errorf("wrong bytes at %d", off)
				}
			}
			// And writing there makes the file longer.
			stamp(b, 8)
			if _, err := f.WriteAt(b[:4096], 2<<20); err != nil {
				t.Fatal(err)
			}
			got := aligned(t, 4096)
			if _, err := f.ReadAt(got, 2<<20); err != nil || !bytes.Equal(got, b[:4096]) {
				t.Errorf("after writing past the end: %v", err)
			}
		})
	}
}

func TestFullDiskIsReportedAsSuch(t *testing.T) {
	c := control(t)
	dir := t.TempDir()
	mount(t, "tmpfs", dir, "tmpfs", "size=4m")
	target, _ := fileTarget(t, dir, 64<<20, false)
	s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, target.Info().Params(), target)
	f := s.disk(t)
	b := aligned(t, 8<<20)
	if _, err := f.WriteAt(b, 0); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing 8 MiB to 4: %v", err)
	}
	if _, err := f.ReadAt(b[:4096], 0); err != nil {
		t.Errorf("reading after that: %v", err)
	}
	if err := discard(f, 0, 8<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b[:4096], 0); err != nil {
		t.Errorf("writing after space came back: %v", err)
	}
	if err := target.Err(); err != nil {
		t.Errorf("a full disk is no reason to give up a volume: %v", err)
	}
}

// A flush that failed may have lost data that was acknowledged. The disk below
// works again later, and yet the volume must not say that all is well. The disk
// below is a device of this test too, on a ring of its own.
func TestFailedFlushFailsTheVolumeForGood(t *testing.T) {
	c := control(t)
	medium := &flakyRAM{ram: newRAM(16 << 20)}
	below := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(16<<20), FromBackend(medium))
	dir := t.TempDir()
	run(t, "mkfs.ext4", "-q", below.BlockPath())
	mount(t, below.BlockPath(), dir, "ext4", "")

	target, file := fileTarget(t, dir, 4<<20, true)
	b := aligned(t, 4096)
	if _, err := file.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	r := newTestRing(t, RingOptions{})
	s := serve(t, c, r, DeviceOptions{ID: -1}, target.Info().Params(), target)
	f := s.disk(t)
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	medium.broken.Store(true)
	if err := f.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("flush of a broken disk: %v", err)
	}
	medium.broken.Store(false)
	if err := f.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("the next flush: %v", err)
	}
	if _, err := f.WriteAt(b, 0); !errors.Is(err, unix.EIO) {
		t.Errorf("the next write: %v", err)
	}
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Errorf("reading must go on: %v", err)
	}
	if target.Err() == nil || s.counters.Failed.Load() != 1 {
		t.Errorf("target says %v, counters say %d", target.Err(), s.counters.Failed.Load())
	}
	// The next process that serves the volume finds the counters as they are.
	again, err := File(file, FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s2 := &served{DeviceInfo: add(t, c, DeviceOptions{ID: -1}), c: c, counters: s.counters}
	s2.open(t, r, again)
	if again.Err() == nil {
		t.Error("a new target of the same volume believes in it")
	}
	s2.down(t)
	s.down(t)
}

type flakyRAM struct {
	*ram
	broken atomic.Bool
}

func (m *flakyRAM) Flush() error {
	if m.broken.Load() {
		return unix.EIO
	}
	return m.ram.Flush()
}

func TestSlowServiceIsNoErrorAndIsMeasured(t *testing.T) {
	c := control(t)
	const size = 4 << 20
	slow := &slowRAM{ram: newRAM(size), delay: 50 * time.Millisecond}
	s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(size), FromBackend(slow))
	b := aligned(t, 4096)
	if _, err := s.disk(t).WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if n := s.counters.Writes.Load(); n != 1 {
		t.Errorf("%d writes", n)
	}
}

type slowRAM struct {
	*ram
	delay time.Duration
}

func (m *slowRAM) WriteAt(p []byte, off int64) (int, error) {
	time.Sleep(m.delay)
	return m.ram.WriteAt(p, off)
}

func TestErrorsOfABackendReachTheUser(t *testing.T) {
	c := control(t)
	const size = 4 << 20
	s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(size), FromBackend(&brokenRAM{newRAM(size)}))
	f := s.disk(t)
	b := aligned(t, 4096)
	if _, err := f.ReadAt(b, 0); !errors.Is(err, unix.EIO) {
		t.Errorf("an error without a number: %v", err)
	}
	if _, err := f.WriteAt(b, 0); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("an error with one: %v", err)
	}
	if s.counters.ReadErrors.Load() == 0 || s.counters.WriteErrors.Load() == 0 {
		t.Error("errors were not counted")
	}
}

type brokenRAM struct{ *ram }

func (*brokenRAM) ReadAt([]byte, int64) (int, error) { return 0, errors.New("no idea") }

func (*brokenRAM) WriteAt([]byte, int64) (int, error) {
	return 0, fmt.Errorf("the cloud is full: %w", unix.ENOSPC)
}
