package pool

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNoSnapshotsWithoutReflink(t *testing.T) {
	p := newPool(t, nil)
	if p.Reflink() {
		p.reflink = false // a machine whose temporary directory has it
	}
	if err := p.Create("v", mib); err != nil {
		t.Fatal(err)
	}
	_, err := p.CopyToSnapshot("s", "v", nil)
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "use a pool on xfs or btrfs") {
		t.Errorf("snapshot: %v", err)
	}
	_, err = p.CopyToVolume("c", mib)
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "use a pool on xfs or btrfs") {
		t.Errorf("clone: %v", err)
	}
	if u := usage(t, p); u.PromisedBytes != mib || u.SnapshotBytes != 0 {
		t.Errorf("what was refused counts: %+v", u)
	}
}

// An id that is valid must never look like the leftover of a crash.
func TestUnfinishedCopiesAreSwept(t *testing.T) {
	state := t.TempDir()
	p := openPool(t, state, nil)
	dir := p.snapshots.Name()
	if CheckID(interimCopy+"volume-x") == nil {
		t.Fatal("a snapshot could have the name of a copy")
	}
	for _, name := range []string{interimCopy + "snapshot-a", interimCopy + "volume-b", "kept"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 8192), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.Close()
	p = openPool(t, state, nil)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || entries[0].Name() != "kept" {
		t.Errorf("left: %v, %v", entries, err)
	}
	s, err := p.Snapshot("kept")
	if err != nil || s.SizeBytes != 8192 || s.At.IsZero() {
		t.Errorf("a snapshot that was put there: %+v, %v", s, err)
	}
	if u := usage(t, p); u.SnapshotBytes != s.AllocatedBytes || u.AvailableBytes() != 64*mib-s.AllocatedBytes {
		t.Errorf("%+v, the snapshot has %d allocated", u, s.AllocatedBytes)
	}
}
