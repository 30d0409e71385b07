package server

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

func testJournal(t *testing.T) *journal {
	t.Helper()
	j, err := openJournal(t.TempDir(), "boot", "me")
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func testEntry(volume string) *entry {
	return &entry{
		Volume: volume, Generation: "g1", Path: "/pools/p/" + volume, Inode: 7,
		Device: 3, Queues: 1, Depth: 64, SizeBytes: 1 << 20, Worker: "w-1",
	}
}

func load(t *testing.T, j *journal) ([]*entry, []*DamagedEntryError) {
	t.Helper()
	entries, damaged, err := j.load()
	if err != nil {
		t.Fatal(err)
	}
	return entries, damaged
}

func TestWhatIsPutIsLoaded(t *testing.T) {
	j := testJournal(t)
	want := []*entry{testEntry("a"), testEntry("b")}
	want[1].Limits = ublk.Limits{IOPS: 100, WriteBytes: 1 << 20, Burst: time.Second}
	for _, e := range want {
		if err := j.put(e); err != nil {
			t.Fatal(err)
		}
	}
	got, damaged := load(t, j)
	if d := cmp.Diff(want, got); d != "" || len(damaged) != 0 {
		t.Errorf("loaded entries differ (-want +got), %d damaged:\n%s", len(damaged), d)
	}
}

func TestRemoveSparesTheEntryOfALaterAttach(t *testing.T) {
	j := testJournal(t)
	e := testEntry("a")
	e.Generation = "g2"
	if err := j.put(e); err != nil {
		t.Fatal(err)
	}
	if err := j.remove("a", "g1"); err != nil {
		t.Fatal(err)
	}
	if got, _ := load(t, j); len(got) != 1 {
		t.Fatalf("%d entries after the removal of another generation, want 1", len(got))
	}
	if err := j.remove("a", "g2"); err != nil {
		t.Fatal(err)
	}
	if got, _ := load(t, j); len(got) != 0 {
		t.Errorf("%d entries after the removal, want none", len(got))
	}
	if err := j.remove("a", "g2"); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
}

// What is noted late, of a volume that failed or was recovered, must not bring an
// entry back that a detach has removed: it would claim the device's next user.
func TestUpdateChangesOnlyWhatIsThere(t *testing.T) {
	j := testJournal(t)
	e := testEntry("a")
	update := func(e *entry) error { return j.update(e.Volume, func() entry { return *e }) }
	if err := update(e); err != nil {
		t.Fatal(err)
	}
	if got, _ := load(t, j); len(got) != 0 {
		t.Errorf("%d entries, want none", len(got))
	}
	later := testEntry("a")
	later.Generation = "g2"
	if err := j.put(later); err != nil {
		t.Fatal(err)
	}
	e.Failure = "old"
	if err := update(e); err != nil {
		t.Fatal(err)
	}
	later.Failure = "new"
	if got, _ := load(t, j); len(got) != 1 || got[0].Failure != "" {
		t.Errorf("another generation changed the entry to %+v", got[0])
	}
	if err := update(later); err != nil {
		t.Fatal(err)
	}
	if got, _ := load(t, j); len(got) != 1 || got[0].Failure != "new" {
		t.Errorf("the entry is %+v, want the update", got[0])
	}
}

// A change that is made while an update is under way is not undone by it.
func TestUpdatesAtATimeLoseNothing(t *testing.T) {
	j, e := testJournal(t), testEntry("a")
	if err := j.put(e); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	failed := make(chan error, 1)
	err := j.update("a", func() entry {
		mu.Lock()
		defer mu.Unlock()
		before := *e
		go func() { // while the first one has looked and not written
			mu.Lock()
			e.Failure = "a flush"
			mu.Unlock()
			failed <- j.update("a", func() entry { return *e })
		}()
		return before
	})
	if err := errors.Join(err, <-failed); err != nil {
		t.Fatal(err)
	}
	if got, _ := load(t, j); got[0].Failure != "a flush" {
		t.Errorf("the failure is not in %+v", got[0])
	}
}

func TestUnusableFilesAreMovedAsideAndNamed(t *testing.T) {
	for name, c := range map[string]struct{ file, content, says string }{
		"an empty file":              {"v.json", "", "EOF"},
		"half a file":                {"v.json", `{"format":1,"volume":"v"`, "EOF"},
		"another format":             {"v.json", `{"format":2}`, "format 2"},
		"an unknown field":           {"v.json", `{"format":1,"color":"red"}`, "color"},
		"two values":                 {"v.json", valid("v", "me") + valid("v", "me"), "more than one"},
		"another server's entry":     {"v.json", valid("v", "you"), `owner "you"`},
		"another volume's entry":     {"w.json", valid("v", "me"), `volume "v"`},
		"an id that leads elsewhere": {"v.json", valid("../v", "me"), "volume id"},
		"a file that is no entry":    {"README", "hello", "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			j := testJournal(t)
			if err := j.put(testEntry("good")); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(j.dir, c.file), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			entries, damaged := load(t, j)
			if len(entries) != 1 || len(damaged) != 1 {
				t.Fatalf("%d entries and %d damaged, want 1 and 1", len(entries), len(damaged))
			}
			if !strings.Contains(damaged[0].Error(), c.says) {
				t.Errorf("error %q does not say %q", damaged[0], c.says)
			}
			if b, err := os.ReadFile(damaged[0].Path); err != nil || string(b) != c.content {
				t.Errorf("the file moved aside holds %q (%v), want its content", b, err)
			}
			if _, damaged := load(t, j); len(damaged) != 0 {
				t.Errorf("a second start finds it damaged again: %v", damaged[0])
			}
		})
	}
}

func valid(volume, owner string) string {
	return `{"format":1,"volume":"` + volume + `","generation":"g","path":"/p","inode":1,"device":0,` +
		`"queues":1,"depth":1,"sizeBytes":4096,"owner":"` + owner + `"}`
}

// An entry is of no use to another boot, and attaches must not queue for a disk.
func TestTheJournalWaitsForNoDisk(t *testing.T) {
	syncFile = func(f *os.File) error {
		t.Errorf("%s was synced", f.Name())
		return nil
	}
	defer func() { syncFile = (*os.File).Sync }()
	j := testJournal(t)
	if err := errors.Join(j.put(testEntry("a")), j.remove("a", "g1")); err != nil {
		t.Error(err)
	}
}

func TestAFormerBootLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	for _, boot := range []string{"first", "second"} {
		j, err := openJournal(dir, boot, "me")
		if err != nil {
			t.Fatal(err)
		}
		if entries, damaged := load(t, j); len(entries) != 0 || len(damaged) != 0 {
			t.Errorf("boot %s finds %d entries and %d damaged ones, want none", boot, len(entries), len(damaged))
		}
		if err := j.put(testEntry("a")); err != nil {
			t.Fatal(err)
		}
		// What a power cut may leave.
		if err := os.WriteFile(j.path("b"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "second" {
		t.Errorf("left are %v (%v), want second only", left, err)
	}
}

func TestAFailedWriteLeavesTheOldEntryAndNoTemporaryFile(t *testing.T) {
	j := testJournal(t)
	if err := j.put(testEntry("a")); err != nil {
		t.Fatal(err)
	}
	// A directory can't be replaced by a file: the rename fails.
	if err := os.MkdirAll(filepath.Join(j.path("b"), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := j.put(testEntry("b")); err == nil {
		t.Fatal("put answered nil, want the rename's error")
	}
	os.RemoveAll(j.path("b"))
	got, damaged := load(t, j)
	if len(got) != 1 || got[0].Volume != "a" || len(damaged) != 0 {
		t.Errorf("entries %+v, damaged %v, want a alone", got, damaged)
	}
	if left, _ := filepath.Glob(filepath.Join(j.dir, tempPrefix+"*")); len(left) != 0 {
		t.Errorf("temporary files left: %v", left)
	}
}

func TestVolumesDoNotWaitForOneAnother(t *testing.T) {
	j := testJournal(t)
	unlock := j.lock("a")
	done := make(chan error, 1)
	go func() { done <- j.put(testEntry("b")) }()
	if err := <-done; err != nil { // hangs if b waits for a
		t.Fatal(err)
	}
	unlock()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if err := errors.Join(j.put(testEntry("a")), j.remove("a", "g1")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(j.busy) != 0 {
		t.Errorf("%d locks are left", len(j.busy))
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte(valid("v", "me")))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEntry(b)
		if err != nil {
			return
		}
		if !validVolumeID(e.Volume) || !filepath.IsAbs(e.Path) {
			t.Errorf("accepted %+v", e)
		}
	})
}
