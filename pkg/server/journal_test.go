package server

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testJournal(t *testing.T) *journal {
	t.Helper()
	j, err := openJournal(t.TempDir(), "me")
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func testEntry(volume string) *entry {
	return &entry{
		Volume: volume, Generation: "g1", Phase: phaseLive, Path: "/pools/p/" + volume, Inode: 7,
		Device: 3, Queues: 1, Depth: 64, SizeBytes: 1 << 20, BootID: "boot", Worker: "w-1",
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
	return `{"format":1,"volume":"` + volume + `","generation":"g","phase":"live","path":"/p","inode":1,"device":0,` +
		`"queues":1,"depth":1,"sizeBytes":4096,"bootID":"b","owner":"` + owner + `"}`
}

// A power cut may fall between any two of these steps: the name must lead to a
// whole file at every one of them.
func TestEntriesAreSyncedBeforeTheyGetTheirName(t *testing.T) {
	j := testJournal(t)
	var order []string
	syncFile = func(f *os.File) error {
		_, err := os.Stat(j.path("a"))
		named := err == nil
		switch {
		case f.Name() == j.dir:
			order = append(order, "directory, named "+map[bool]string{true: "yes", false: "no"}[named])
		default:
			b, err := os.ReadFile(f.Name())
			if err != nil || !bytes.Contains(b, []byte(`"volume": "a"`)) {
				t.Errorf("synced a file that holds %q (%v)", b, err)
			}
			order = append(order, "file, named "+map[bool]string{true: "yes", false: "no"}[named])
		}
		return f.Sync()
	}
	defer func() { syncFile = (*os.File).Sync }()
	if err := j.put(testEntry("a")); err != nil {
		t.Fatal(err)
	}
	want := []string{"file, named no", "directory, named yes"}
	if d := cmp.Diff(want, order); d != "" {
		t.Errorf("order of syncs (-want +got):\n%s", d)
	}
}

func TestAFailedSyncLeavesTheOldEntryAndNoTemporaryFile(t *testing.T) {
	j := testJournal(t)
	if err := j.put(testEntry("a")); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("no space")
	syncFile = func(*os.File) error { return boom }
	defer func() { syncFile = (*os.File).Sync }()
	e := testEntry("a")
	e.Phase = phaseStopping
	if err := j.put(e); !errors.Is(err, boom) {
		t.Fatalf("put answered %v, want the sync's error", err)
	}
	got, _ := load(t, j)
	if len(got) != 1 || got[0].Phase != phaseLive {
		t.Errorf("entries %+v, want the old one", got)
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
