//go:build ublk && linux

package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A request that the disk does not answer must not make all others wait for it longer than
// was said.
func TestACutDoesNotWaitForEverForWhatIsInFlight(t *testing.T) {
	s, disk, user := slowVolume(t, true)
	target := filepath.Join(s.poolsDir, "p", "copy")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := block('A')
	disk.keep(first[:512])
	written := make(chan error, 1)
	go func() { written <- write(user, first) }()
	wait(t, "the write to reach the disk", disk.kept)
	begin := time.Now()
	// Should it be cloned all the same, the file system waits for the write, too.
	ctx, cancel := context.WithTimeout(t.Context(), 2*cutLimit)
	defer cancel()
	if _, err := s.cut(ctx, []*cutCopy{{id: "v", target: target}}); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("cut: %v, want that requests did not end", err)
	}
	if d := time.Since(begin); d > cutLimit {
		t.Errorf("it took %v", d)
	}
	if st, err := os.Stat(target); err != nil || st.Size() != 0 {
		t.Errorf("the target has %d bytes, %v", st.Size(), err)
	}
	b := block(0)
	if _, err := user.ReadAt(b, 8<<20); err != nil { // with the write still under way
		t.Error(err)
	}
	close(disk.release)
	if err := <-written; err != nil {
		t.Error(err)
	}
	if held, err := s.cut(t.Context(), []*cutCopy{{id: "v", target: target}}); err != nil {
		t.Errorf("after it: %v", err)
	} else {
		t.Logf("held for %v", held)
	}
}

// Requests must not wait for ever for a file system that does not get on with a clone; and
// what it has cloned in the end is of no one moment.
func TestACutWhoseClonesTakeTooLongIsNone(t *testing.T) {
	released := make(chan struct{})
	v := newCutVolumes(t, func(s *Server) {
		s.cutSteps.clone = func(c *cutCopy) error {
			<-released
			return c.clone()
		}
	})
	s := startSequence(t, v.disks[0], v.disks[1])
	defer s.end()
	waitFor(t, "the writer to start", func() bool { return s.n.Load() > 2 })
	done := make(chan error, 1)
	go func() {
		_, _, err := v.cut()
		done <- err
	}()
	begin := time.Now()
	time.Sleep(cutHeldMost / 2)
	before := s.n.Load()
	waitFor(t, "the writer to go on", func() bool { return s.n.Load() > before+1 })
	if d := time.Since(begin); d < cutHeldMost || d > 2*cutHeldMost {
		t.Errorf("the writer went on after %v", d)
	}
	close(released)
	if err := <-done; !errors.Is(err, errUnavailable) {
		t.Errorf("cut: %v, want none", err)
	}
}
