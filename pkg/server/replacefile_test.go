package server

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A power cut may fall between any two of these steps: the name must lead to a
// whole file at every one of them.
func TestADurableFileIsSyncedBeforeItGetsItsName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owner")
	var order []string
	syncFile = func(f *os.File) error {
		_, err := os.Stat(path)
		named := map[bool]string{true: "named", false: "nameless"}[err == nil]
		if f.Name() == filepath.Dir(path) {
			order = append(order, "directory, "+named)
			return f.Sync()
		}
		if b, err := os.ReadFile(f.Name()); err != nil || string(b) != "content" {
			t.Errorf("synced a file that holds %q (%v)", b, err)
		}
		order = append(order, "file, "+named)
		return f.Sync()
	}
	defer func() { syncFile = (*os.File).Sync }()
	if err := writeFileDurably(path, []byte("content")); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"file, nameless", "directory, named"}, order); d != "" {
		t.Errorf("order of syncs (-want +got):\n%s", d)
	}
}

func TestAFailedSyncLeavesTheOldFileAndNoTemporaryOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owner")
	if err := writeFileDurably(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("no space")
	syncFile = func(*os.File) error { return boom }
	defer func() { syncFile = (*os.File).Sync }()
	if err := writeFileDurably(path, []byte("new")); !errors.Is(err, boom) {
		t.Fatalf("answered %v, want the sync's error", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "old" {
		t.Errorf("the file holds %q (%v), want what it did", b, err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), tempPrefix+"*")); len(left) != 0 {
		t.Errorf("temporary files left: %v", left)
	}
}
