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

func TestAFenceKeepsTheFileSystemInItsName(t *testing.T) {
	dir := t.TempDir()
	f, err := makeFence(dir, "w-1")
	if err != nil || f.fileSystem != 0 {
		t.Fatalf("a new fence is of file system %d (%v), want none", f.fileSystem, err)
	}
	w := openWriter(t, f.path)
	defer w.Close()
	const device = 1<<40 + 66306
	if err := f.assign(device); err != nil {
		t.Fatal(err)
	}
	found, err := openFences(dir)
	if err != nil || len(found) != 1 || found[0].fileSystem != device || found[0].worker != f.worker {
		t.Fatalf("the next server finds %+v (%v), want one fence of file system %d, worker %s", found, err, device, f.worker)
	}
	if err := found[0].wait(shortly(t)); err == nil {
		t.Error("the fence is down while its writer lives")
	}
	found[0].close()
	if err := f.remove(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("pipes are left: %v", left)
	}
}

func TestAFenceOfUnknownFilesHoldsUpAll(t *testing.T) {
	s := newFenceSet(slog.New(slog.NewTextHandler(io.Discard, nil)), newMetrics())
	defer s.close()
	f, err := makeFence(t.TempDir(), "w-1")
	if err != nil {
		t.Fatal(err)
	}
	w := openWriter(t, f.path)
	s.add(f)
	if err := s.wait(shortly(t), 66306); err == nil {
		t.Error("a volume went on while it was not known whose files a dead worker writes to")
	}
	w.Close()
	if err := s.wait(t.Context(), 66306); err != nil {
		t.Error(err)
	}
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
	const pool, other = 66306, 66307
	if err := s.wait(shortly(t), pool); err != nil {
		t.Fatalf("an empty set: %v", err)
	}
	writers := make([]*os.File, 2)
	for i, name := range []string{servingName("w-1", pool), servingName("w-2", pool)} {
		f, err := makeFence(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		writers[i] = openWriter(t, f.path)
		s.add(f)
	}
	for _, w := range writers {
		if err := s.wait(shortly(t), pool); err == nil {
			t.Fatal("the set was done while a fence was up")
		}
		if err := s.wait(shortly(t), other); err != nil {
			t.Errorf("a fence of one file system holds up another: %v", err)
		}
		w.Close()
	}
	if err := s.wait(t.Context(), pool); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("pipes are left: %v", left)
	}
}
