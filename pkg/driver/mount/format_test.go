package mount

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func newFormatter(t *testing.T) *Formatter {
	t.Helper()
	f, err := NewFormatter(Options{IntentDir: filepath.Join(t.TempDir(), "formatting")})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func image(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
		t.Fatal(err)
	}
	return path
}

// A file does for a device: mkfs, fsck and blkid take both.
func TestFormat(t *testing.T) {
	ctx := context.Background()
	f := newFormatter(t)
	device := image(t, 64<<20)
	needs := func(fsType string, want bool) {
		t.Helper()
		if got, err := f.NeedsFormat(ctx, "v", device, fsType); err != nil || got != want {
			t.Errorf("NeedsFormat(%s) = %v, %v; want %v", fsType, got, err, want)
		}
	}
	needs("ext4", true)
	if err := f.Format(ctx, "p", "v", device, "ext4"); err != nil {
		t.Fatal(err)
	}
	needs("ext4", false)
	if err := f.Check(ctx, "p", device, "ext4"); err != nil {
		t.Errorf("Check of a new file system: %v", err)
	}
	var content *ContentError
	if _, err := f.NeedsFormat(ctx, "v", device, "xfs"); !errors.As(err, &content) || !errors.Is(err, syscall.EBUSY) || content.Found.Type != "ext4" {
		t.Errorf("NeedsFormat(xfs) of ext4: %v", err)
	}
}

func TestFormatThatFailsIsRepeated(t *testing.T) {
	ctx := context.Background()
	f := newFormatter(t)
	device := image(t, 8<<10) // nothing fits into 8 KiB
	err := f.Format(ctx, "p", "v", device, "ext4")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(err.Error(), "mkfs.ext4") {
		t.Fatalf("mkfs on 8 KiB: %v", err)
	}
	// What half a mkfs leaves.
	if err := os.WriteFile(device, []byte("half a file system"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := f.NeedsFormat(ctx, "v", device, "ext4"); err != nil || !again {
		t.Errorf("NeedsFormat = %v, %v; a mkfs that did not end must be repeated", again, err)
	}
	if err := f.Forget("v"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.NeedsFormat(ctx, "v", device, "ext4"); err == nil {
		t.Error("without the mark, unknown data must be refused")
	}
}

func TestMarkOfAnotherBoot(t *testing.T) {
	f := newFormatter(t)
	device := image(t, 1<<20)
	if err := errors.Join(os.MkdirAll(f.intents, 0o700), os.WriteFile(f.intent("v"), []byte("another boot"), 0o600),
		os.WriteFile(device, []byte("data"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if again, err := f.NeedsFormat(context.Background(), "v", device, "ext4"); err == nil || again {
		t.Errorf("NeedsFormat = %v, %v; a mark that a power cut brought back must not destroy data", again, err)
	}
}

func TestFormatWaitsForItsSlot(t *testing.T) {
	f, err := NewFormatter(Options{IntentDir: t.TempDir(), Concurrent: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !f.slotsOf("p").mkfs.TryAcquire(1) {
		t.Fatal("no slot")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.Format(ctx, "p", "v", image(t, 1<<20), "ext4"); !errors.Is(err, context.Canceled) {
		t.Errorf("Format without a slot: %v", err)
	}
	if err := f.Format(context.Background(), "another", "v", image(t, 64<<20), "ext4"); err != nil {
		t.Errorf("Format in another pool: %v", err)
	}
}

func TestUnknownFileSystem(t *testing.T) {
	if err := newFormatter(t).Format(context.Background(), "p", "v", image(t, 1<<20), "zfs"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

func TestAtWithoutAMount(t *testing.T) {
	dir := t.TempDir()
	if s, err := At(dir); err != nil || !s.Exists || s.Mounted || !s.IsDir() {
		t.Errorf("a directory: %+v, %v", s, err)
	}
	if s, err := At(filepath.Join(dir, "nothing")); err != nil || s.Exists {
		t.Errorf("nothing: %+v, %v", s, err)
	}
	if s, err := At("/proc"); err != nil || !s.Mounted {
		t.Errorf("/proc: %+v, %v", s, err)
	}
	if err := Unmount(dir); err != nil {
		t.Errorf("unmount of no mount: %v", err)
	}
	if err := Unmount(filepath.Join(dir, "nothing")); err != nil {
		t.Errorf("unmount of nothing: %v", err)
	}
}

func TestFsckWaitsForSlotsOfItsOwn(t *testing.T) {
	f, err := NewFormatter(Options{IntentDir: t.TempDir(), Concurrent: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !f.slotsOf("p").checks.TryAcquire(1) {
		t.Fatal("no slot")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	device := image(t, 64<<20)
	if err := f.Format(ctx, "p", "v", device, "ext4"); err != nil {
		t.Errorf("mkfs while a fsck runs: %v", err)
	}
	cancel()
	if err := f.Check(ctx, "p", device, "ext4"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "fsck slots") {
		t.Errorf("fsck without a slot: %v", err)
	}
}

// What a template must not depend on, and what makes it another one.
func TestTemplateRecipe(t *testing.T) {
	f := newFormatter(t)
	a, err := f.Template(context.Background(), "p", "ext4")
	if err != nil {
		t.Fatal(err)
	}
	f.versions["ext4"] = "another version"
	b, err := f.Template(context.Background(), "p", "ext4")
	if err != nil || a.Recipe == b.Recipe || !strings.Contains(a.Recipe, "mke2fs") {
		t.Errorf("recipes %q and %q, %v", a.Recipe, b.Recipe, err)
	}
	if _, err := f.Template(context.Background(), "p", "btrfs"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a template of a file system that is not made: %v", err)
	}
	file := image(t, 256<<20)
	if err := a.Make(context.Background(), file); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("dumpe2fs", file).CombinedOutput()
	if err != nil || strings.Count(string(out), "ITABLE_ZEROED") != 2 || !strings.Contains(string(out), "metadata_csum_seed") {
		t.Errorf("two groups whose inode tables the kernel need not zero are wanted: %v\n%s", err, out)
	}
	if !f.slotsOf("p").mkfs.TryAcquire(int64(max(2, runtime.GOMAXPROCS(0)))) {
		t.Fatal("no slots")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.Make(ctx, image(t, 64<<20)); !errors.Is(err, context.Canceled) {
		t.Errorf("made without a slot: %v", err)
	}
}
