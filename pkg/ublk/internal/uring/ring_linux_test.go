package uring

import (
	"bytes"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func newRing(t *testing.T, c Config) *Ring {
	t.Helper()
	runtime.LockOSThread()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		runtime.UnlockOSThread()
	})
	return r
}

func page(t *testing.T) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func collect(t *testing.T, r *Ring, n int) map[uint64]int32 {
	t.Helper()
	got := map[uint64]int32{}
	for end := time.Now().Add(10 * time.Second); len(got) < n; {
		var c CQE
		for r.Peek(&c) {
			got[c.UserData] = c.Res
		}
		if len(got) >= n {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d completions: %v", len(got), n, got)
		}
		if err := r.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// What is left of a chain after a part of it was taken must never run.
func TestATornChainEndsTheRing(t *testing.T) {
	r := newRing(t, Config{Entries: 8, CompletionEntries: 16})
	for _, flags := range []uint8{0, Link, Link, 0} {
		r.Next().Flags = flags // operation 0 does nothing
	}
	r.publish()
	if err := r.submit(1); err != nil {
		t.Errorf("between chains: %v", err)
	}
	torn := r.submit(2)
	if torn == nil || r.Space() != 7 {
		t.Errorf("two of three: %v, space for %d", torn, r.Space())
	}
	for name, enter := range map[string]func() error{"Submit": r.Submit, "Wait": r.Wait, "WaitFor": func() error { return r.WaitFor(1) }} {
		r.Next()
		if err := enter(); err != torn || r.Space() != 8 {
			t.Errorf("%s after it: %v, space for %d", name, err, r.Space())
		}
	}
}

func TestWriteReadSyncPunchThroughTheRing(t *testing.T) {
	for name, wide := range map[string]bool{"64-byte entries": false, "128-byte entries": true} {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, Config{Entries: 8, CompletionEntries: 16, Wide: wide})
			f, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			out, in := page(t), page(t)
			for i := range out {
				out[i] = byte(i * 7)
			}
			fd := int(f.Fd())
			s := r.Next()
			s.Write(fd, unsafe.Pointer(&out[0]), len(out), 8192, 0)
			s.Flags, s.UserData = Link, 1
			s = r.Next()
			s.Fdatasync(fd)
			s.Flags, s.UserData = Link, 2
			s = r.Next()
			s.Read(fd, unsafe.Pointer(&in[0]), len(in), 8192)
			s.UserData = 3
			got := collect(t, r, 3)
			if got[1] != 4096 || got[2] != 0 || got[3] != 4096 || !bytes.Equal(in, out) {
				t.Fatalf("results %v, equal %v", got, bytes.Equal(in, out))
			}
			s = r.Next()
			s.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 8192, 2048)
			s.UserData = 4
			if got := collect(t, r, 1); got[4] != 0 {
				t.Fatalf("punch hole: %v", unix.Errno(-got[4]))
			}
			if _, err := f.ReadAt(in, 8192); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(in[:2048], make([]byte, 2048)) || !bytes.Equal(in[2048:], out[2048:]) {
				t.Fatal("the hole is not where it was asked for")
			}
		})
	}
}

// The request machine relies on exactly this: which entries of a broken chain
// complete, and which do so silently.
func TestBrokenChains(t *testing.T) {
	chain := func(t *testing.T, first uint8) *Ring {
		t.Helper()
		r := newRing(t, Config{Entries: 8, CompletionEntries: 16})
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if _, err := f.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		b := page(t)
		s := r.Next()
		s.Read(int(f.Fd()), unsafe.Pointer(&b[0]), 4096, 0)
		s.Flags, s.UserData = first, 1
		s = r.Next()
		s.Fdatasync(int(f.Fd()))
		s.Flags, s.UserData = Link, 2
		s = r.Next()
		s.Fdatasync(int(f.Fd()))
		s.UserData = 3
		return r
	}
	t.Run("a short read that skips success completes alone", func(t *testing.T) {
		r := chain(t, Link|SkipSuccess)
		got := collect(t, r, 1)
		time.Sleep(20 * time.Millisecond)
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		if r.Ready() || got[1] != 100 {
			t.Fatalf("results %v, more %v", got, r.Ready())
		}
	})
	t.Run("a short read that does not takes the chain with it", func(t *testing.T) {
		got := collect(t, chain(t, Link), 3)
		if got[1] != 100 || got[2] != -int32(unix.ECANCELED) || got[3] != -int32(unix.ECANCELED) {
			t.Fatalf("results %v", got)
		}
	})
}

// An fallocate (or a sync) that fails does not break its chain: a commit linked
// to it would answer success. Should this test fail one day, the kernel has
// changed, and for the better.
func TestFailedFallocateDoesNotBreakItsChain(t *testing.T) {
	r := newRing(t, Config{Entries: 8, CompletionEntries: 16})
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := r.Next()
	s.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE, 0, 4096) // EOPNOTSUPP without KEEP_SIZE
	s.Flags, s.UserData = Link, 1
	s = r.Next()
	s.Fdatasync(int(f.Fd()))
	s.UserData = 2
	if got := collect(t, r, 2); got[1] >= 0 || got[2] != 0 {
		t.Fatalf("results %v", got)
	}
}

func TestRegisteredFileOutlivesItsDescriptor(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := New(Config{Entries: 8, CompletionEntries: 16})
	if err != nil {
		t.Fatal(err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := r.RegisterFile(int(out.Fd())); err != nil {
		t.Fatal(err)
	}
	out.Close()
	if err := in.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Fatalf("read while the ring lives: %v, want a timeout", err)
	}
	r.Close()
	if err := in.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := in.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
		t.Fatalf("read after the ring is gone: %d, %v, want EOF", n, err)
	}
}

func TestWorkersCanBeSet(t *testing.T) {
	r := newRing(t, Config{Entries: 8, CompletionEntries: 16})
	if err := r.SetWorkers(3, 5); err != nil {
		t.Fatal(err)
	}
	// The call returns the values of before.
	list := [2]uint32{}
	if err := r.register(registerIOWQMaxWorkers, unsafe.Pointer(&list), 2); err != nil || list != [2]uint32{3, 5} {
		t.Fatalf("read back %v, %v", list, err)
	}
}

func TestOverflowedCompletionsArrive(t *testing.T) {
	r := newRing(t, Config{Entries: 64, CompletionEntries: 64})
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := page(t)
	const n = 256
	for i := range n {
		if r.Space() == 0 {
			if err := r.Submit(); err != nil {
				t.Fatal(err)
			}
		}
		s := r.Next()
		s.Read(int(f.Fd()), unsafe.Pointer(&b[0]), 1, 0)
		s.UserData = uint64(i + 1)
	}
	if got := collect(t, r, n); len(got) != n || r.Dropped() != 0 {
		t.Fatalf("%d completions, %d dropped", len(got), r.Dropped())
	}
}

func TestAWaitEndsInTimeOrWithACompletion(t *testing.T) {
	r := newRing(t, Config{Entries: 8, CompletionEntries: 16})
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	b := page(t)
	s := r.Next()
	s.Read(int(in.Fd()), unsafe.Pointer(&b[0]), 1, ^uint64(0))
	s.UserData = 1
	if n := testing.AllocsPerRun(3, func() {
		begin := time.Now()
		for time.Since(begin) < 30*time.Millisecond {
			// The Go runtime's signals end it early.
			if err := r.WaitFor(int64(30*time.Millisecond - time.Since(begin))); err != nil {
				t.Fatal(err)
			}
		}
		if r.Ready() {
			t.Fatal("a completion out of nothing")
		}
	}); n != 0 {
		t.Errorf("%v allocations a wait", n)
	}
	if _, err := out.Write(b[:1]); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for !r.Ready() && time.Since(begin) < time.Minute {
		if err := r.WaitFor(int64(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if !r.Ready() {
		t.Error("a completion did not end the wait")
	}
}

func TestRingPathDoesNotAllocate(t *testing.T) {
	r := newRing(t, Config{Entries: 8, CompletionEntries: 16})
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, b := int(f.Fd()), page(t)
	if n := testing.AllocsPerRun(100, func() {
		s := r.Next()
		s.Read(fd, unsafe.Pointer(&b[0]), 1, 0)
		if err := r.Wait(); err != nil {
			t.Fatal(err)
		}
		var c CQE
		for r.Peek(&c) {
		}
	}); n != 0 {
		t.Fatalf("%v allocations a read", n)
	}
}

// What the answer is depends on the kernel; the ring of 8 entries in the tests of package
// ublk does wrong where it is true and should not be.
func TestWhetherCommandsAreCopied(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	first, err := CopiesCommands()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the kernel copies commands: %v", first)
	for range 20 {
		if again, err := CopiesCommands(); again != first || err != nil {
			t.Errorf("the kernel copies commands: %v, %v; before %v", again, err, first)
		}
	}
}
