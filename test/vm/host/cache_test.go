package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestEntryIsFilledOnce(t *testing.T) {
	h := &Host{Cache: t.TempDir()}
	var fills atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := h.Entry(t.Context(), "kind", "key", func(_ context.Context, dir string) error {
				fills.Add(1)
				time.Sleep(50 * time.Millisecond)
				return os.WriteFile(filepath.Join(dir, "file"), []byte("whole"), 0o644)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if b, err := os.ReadFile(filepath.Join(dir, "file")); string(b) != "whole" {
				t.Errorf("entry has %q, %v", b, err)
			}
		})
	}
	wg.Wait()
	if n := fills.Load(); n != 1 {
		t.Errorf("filled %d times, want once", n)
	}
}

func TestEntryLeavesNothingOfAFailure(t *testing.T) {
	h := &Host{Cache: t.TempDir()}
	broken := errors.New("broken")
	_, err := h.Entry(t.Context(), "kind", "key", func(_ context.Context, dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("Entry = %v, want the fill's error", err)
	}
	left, _ := os.ReadDir(filepath.Join(h.Cache, "kind"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLockWaitEndsWithItsContext(t *testing.T) {
	h := &Host{Cache: t.TempDir()}
	unlock, err := h.Lock(t.Context(), "name")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.Lock(ctx, "name"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second Lock = %v, want a deadline", err)
	}
}

func TestKeySeesBorders(t *testing.T) {
	if Key("a", "bc") == Key("ab", "c") {
		t.Error("the border between parts does not count")
	}
}

func TestRunEndsTheWholeTree(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	marker := filepath.Join(t.TempDir(), "late")
	start := time.Now()
	_, err := Run(ctx, Command{Args: []string{"sh", "-c", "(sleep 1; touch " + marker + ") & wait"}})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Run = %v, want a deadline", err)
	}
	time.Sleep(1300*time.Millisecond - time.Since(start))
	if _, err := os.Stat(marker); err == nil {
		t.Error("a child went on after the end")
	}
}

func TestRunShowsWhatTheProgramSaid(t *testing.T) {
	_, err := Run(t.Context(), Command{Args: []string{"sh", "-c", "echo why >&2; exit 3"}})
	if err == nil || err.Error() != "sh: exit status 3\n    why" {
		t.Errorf("Run = %v", err)
	}
}
