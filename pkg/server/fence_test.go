package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func openWriter(t *testing.T, path string) *os.File {
	t.Helper()
	w, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestAFenceIsUpAsLongAsItHasAWriter(t *testing.T) {
	f, err := makeFence(t.TempDir(), "w-1")
	if err != nil {
		t.Fatal(err)
	}
	w := openWriter(t, f.path)
	if err := f.wait(shortly(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("wait with a writer: %v, want to wait until the deadline", err)
	}
	// The wait must see the end also when it comes later.
	time.AfterFunc(50*time.Millisecond, func() { w.Close() })
	f.read.SetReadDeadline(time.Time{})
	if err := f.wait(t.Context()); err != nil {
		t.Fatalf("wait after the last writer: %v", err)
	}
	if err := f.remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pipe is still there: %v", err)
	}
}

func TestDataIsNoEnd(t *testing.T) {
	f, err := makeFence(t.TempDir(), "w-1")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	w := openWriter(t, f.path)
	defer w.Close()
	if _, err := w.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if err := f.wait(shortly(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait with data and a writer: %v, want to wait until the deadline", err)
	}
}

func TestTheNextServerFindsTheFenceUp(t *testing.T) {
	dir := t.TempDir()
	f, err := makeFence(dir, "w-1")
	if err != nil {
		t.Fatal(err)
	}
	w := openWriter(t, f.path)
	f.close() // the first server is gone
	found, err := openFences(dir)
	if err != nil || len(found) != 1 {
		t.Fatalf("found %d fences (%v), want 1", len(found), err)
	}
	if err := found[0].wait(shortly(t)); err == nil {
		t.Fatal("the fence is down while its writer lives")
	}
	w.Close()
	found[0].read.SetReadDeadline(time.Time{})
	if err := found[0].wait(t.Context()); err != nil {
		t.Error(err)
	}
	found[0].close()
}

func TestAFileThatIsNoPipeIsNoFence(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "w-1.fifo"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openFences(dir); err == nil {
		t.Error("a plain file, which is always at its end, was taken for a fence that is down")
	}
}

func TestTheSetWaitsForEveryFence(t *testing.T) {
	dir := t.TempDir()
	s := newFenceSet(slog.New(slog.NewTextHandler(io.Discard, nil)), newMetrics())
	defer s.close()
	if err := s.wait(shortly(t)); err != nil {
		t.Fatalf("an empty set: %v", err)
	}
	writers := make([]*os.File, 2)
	for i, name := range []string{"w-1", "w-2"} {
		f, err := makeFence(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		writers[i] = openWriter(t, f.path)
		s.add(f)
	}
	for _, w := range writers {
		if err := s.wait(shortly(t)); err == nil {
			t.Fatal("the set was done while a fence was up")
		}
		w.Close()
	}
	if err := s.wait(t.Context()); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("pipes are left: %v", left)
	}
}
