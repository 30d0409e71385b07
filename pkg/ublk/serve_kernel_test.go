//go:build ublk && linux

package ublk

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ram is the simplest Backend.
type ram struct {
	mu     sync.Mutex
	b      []byte
	flushs int
}

func newRAM(n int) *ram { return &ram{b: make([]byte, n)} }

func (m *ram) ReadAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := copy(p, m.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *ram) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(m.b[off:], p), nil
}

func (m *ram) Flush() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.flushs++
	return nil
}

func (m *ram) Discard(off, n int64) error { return m.WriteZeroes(off, n) }

func (m *ram) WriteZeroes(off, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.b[off : off+n])
	return nil
}

func ramParams(bytes int) Params {
	return Params{
		Sectors: uint64(bytes) / 512, LogicalBlockBytes: 512, PhysicalBlockBytes: 4096, VolatileCache: true, FUA: true,
		DiscardGranularityBytes: 4096, MaxDiscardSectors: 1 << 20, MaxWriteZeroesSectors: 1 << 20,
	}
}

func newTestRing(t testing.TB, o RingOptions) *Ring {
	t.Helper()
	r, err := NewRing(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// A served is a device of the test's own, up and running.
type served struct {
	DeviceInfo
	c        *Control
	dev      *Device
	counters *Counters
	gone     bool
}

// serve brings up a device on ring r; the test's end takes it down.
func serve(t testing.TB, c *Control, r *Ring, o DeviceOptions, p Params, target Target) *served {
	t.Helper()
	ctx := ctxFor(t)
	o.Features |= c.Features() & (NoAutoPartScan | Quiesce)
	if o.Features.Has(Quiesce) {
		o.Features |= UserRecovery | UserRecoveryReissue
	}
	info := add(t, c, o)
	if err := c.SetParams(ctx, info.ID, p); err != nil {
		t.Fatal(err)
	}
	s := &served{DeviceInfo: info, c: c, counters: new(Counters)}
	s.open(t, r, target)
	if err := c.Start(ctx, info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.down(t) })
	return s
}

func (s *served) open(t testing.TB, r *Ring, target Target) {
	t.Helper()
	var err error
	if s.dev, err = OpenDevice(s.DeviceInfo); err != nil {
		t.Fatal(err)
	}
	for q := range s.Queues {
		if err := s.dev.Serve(q, r, target, s.counters); err != nil {
			t.Fatal(err)
		}
	}
}

// down is the order that scales: stop, wait for the tags, delete while the char
// device is open, close.
func (s *served) down(t testing.TB) {
	t.Helper()
	if s.gone {
		return
	}
	s.gone = true
	ctx := ctxFor(t)
	if err := s.c.Stop(ctx, s.ID); err != nil {
		t.Error(err)
	}
	s.waitDone(t)
	err := s.c.DeleteAsync(ctx, s.ID)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if err := s.dev.Close(); err != nil {
		t.Error(err)
	}
	if err := s.dev.Err(); err != nil {
		t.Error(err)
	}
	if err != nil {
		if err := s.c.Delete(ctx, s.ID); err != nil {
			t.Error(err)
		}
	}
	waitGone(t, s.DeviceInfo)
}

func (s *served) waitDone(t testing.TB) {
	t.Helper()
	select {
	case <-s.dev.Done():
	case <-time.After(20 * time.Second):
		t.Fatalf("device %d: tags not aborted", s.ID)
	}
}

func waitGone(t testing.TB, info DeviceInfo) {
	t.Helper()
	waitFor(t, info.CharPath()+" to vanish", func() bool {
		_, err := os.Stat("/sys/class/ublk-char/" + filepath.Base(info.CharPath()))
		return errors.Is(err, os.ErrNotExist)
	})
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}

// disk opens the block device past the page cache.
func (s *served) disk(t testing.TB) *os.File {
	t.Helper()
	f, err := os.OpenFile(s.BlockPath(), os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// aligned is memory that direct I/O takes.
func aligned(t testing.TB, n int) []byte {
	t.Helper()
	b, err := mapMemory(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// fileTarget makes a sparse file of n bytes in dir.
func fileTarget(t testing.TB, dir string, n int64, direct bool) (*FileTarget, *os.File) {
	t.Helper()
	flags := os.O_RDWR | os.O_CREATE | os.O_EXCL
	if direct {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(filepath.Join(dir, "volume"), flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	target, err := File(f, FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return target, f
}

func TestLifeOfADevice(t *testing.T) {
	c := control(t)
	ctx := ctxFor(t)
	r := newTestRing(t, RingOptions{})
	const size = 8 << 20
	s := serve(t, c, r, DeviceOptions{ID: -1, Owner: 42}, ramParams(size), FromBackend(newRAM(size)))

	info, err := c.Info(ctx, s.ID)
	if err != nil || info.State != StateLive || info.Pid != os.Getpid() || info.Owner != 42 {
		t.Errorf("info %+v, %v", info, err)
	}
	p, err := c.Params(ctx, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(s.BlockPath(), &st); err != nil {
		t.Fatal(err)
	}
	if p.DiskMajor != unix.Major(st.Rdev) || p.DiskMinor != unix.Minor(st.Rdev) {
		t.Errorf("disk is %d:%d, parameters say %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev), p.DiskMajor, p.DiskMinor)
	}
	if err := c.Start(ctx, s.ID, os.Getpid()); !errors.Is(err, unix.EEXIST) {
		t.Errorf("starting twice: %v", err)
	}
	if err := c.SetParams(ctx, s.ID, ramParams(size)); !errors.Is(err, unix.EACCES) {
		t.Errorf("parameters after start: %v", err)
	}
	if _, err := OpenDevice(s.DeviceInfo); !errors.Is(err, unix.EBUSY) {
		t.Errorf("opening what is served: %v", err)
	}
	if err := s.dev.Serve(0, r, Null(), nil); !errors.Is(err, ErrBusy) {
		t.Errorf("serving a queue twice: %v", err)
	}
	if err := s.dev.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("closing what is served: %v", err)
	}
	if err := r.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("closing a ring that serves: %v", err)
	}

	f := s.disk(t)
	b := aligned(t, 4096)
	copy(b, "hello")
	if _, err := f.WriteAt(b, 4096); err != nil {
		t.Fatal(err)
	}
	clear(b)
	if _, err := f.ReadAt(b, 4096); err != nil || string(b[:5]) != "hello" {
		t.Fatalf("read %q, %v", b[:5], err)
	}
	if c.Features().Has(SafeStop) {
		if err := c.TryStop(ctx, s.ID); !errors.Is(err, unix.EBUSY) {
			t.Errorf("trying to stop a disk in use: %v", err)
		}
	}
	f.Close()
	s.down(t)
	if _, err := os.Stat(s.BlockPath()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the disk is still there: %v", err)
	}
	if n := s.counters.Writes.Load(); n != 1 {
		t.Errorf("%d writes", n)
	}
}
