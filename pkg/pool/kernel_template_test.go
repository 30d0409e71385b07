//go:build ublk

package pool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/pool/command"
)

// templatePool is a pool on a fresh XFS of the disk, that keeps templates.
func templatePool(t *testing.T, change func(*Options)) *Pool {
	t.Helper()
	state := stateOn(t, "xfs")
	return openPool(t, state, func(o *Options) {
		o.SizeBytes, o.MaxTemplates = 0, 4
		if change != nil {
			change(o)
		}
	})
}

// ext4Template counts how often it is made.
func ext4Template(recipe string, made *atomic.Int32) Template {
	return Template{FSType: "ext4", Recipe: recipe, Make: func(ctx context.Context, path string) error {
		made.Add(1)
		return command.Run(ctx, "mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "metadata_csum_seed", "-E", "nodiscard", path)
	}}
}

func templateNames(t *testing.T, p *Pool) []string {
	t.Helper()
	entries, err := os.ReadDir(p.templates.dir.Name())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// uuidAt reads the UUID out of ext4's superblock.
func uuidAt(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 16)
	if _, err := f.ReadAt(b, 1024+0x68); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func mustCreate(t *testing.T, p *Pool, size int64, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := p.Create(id, size); err != nil {
			t.Fatal(err)
		}
	}
}

// Two hundred volumes at the same moment: mkfs runs once, each has a file system
// and a UUID of its own, and next to no space goes.
func TestCloneMany(t *testing.T) {
	p := templatePool(t, nil)
	var made atomic.Int32
	template := ext4Template("a", &made)
	const n = 200
	for i := range n {
		mustCreate(t, p, 16*mib, fmt.Sprint("v", i))
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := p.Clone(t.Context(), fmt.Sprint("v", i), template); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := made.Load(); got != 1 {
		t.Errorf("mkfs ran %d times", got)
	}
	uuids := map[string]bool{}
	for i := range n {
		path := p.VolumePath(fmt.Sprint("v", i))
		uuids[uuidAt(t, path)] = true
		if i%40 == 0 {
			program(t, "e2fsck", "-fn", path)
		}
	}
	if len(uuids) != n {
		t.Errorf("%d UUIDs of %d volumes", len(uuids), n)
	}
	names := templateNames(t, p)
	if len(names) != 1 || !strings.HasPrefix(names[0], "ext4-") || !strings.HasSuffix(names[0], fmt.Sprint("-", 16*mib)) {
		t.Fatalf("templates: %v", names)
	}
	info, err := os.Stat(filepath.Join(p.templates.dir.Name(), names[0]))
	if err != nil || info.Mode() != 0o400 {
		t.Errorf("template: %v, %v", info, err)
	}
	u := usage(t, p)
	if u.TemplateBytes <= 0 || u.TemplateBytes > 2*mib || u.PromisedBytes != n*16*mib {
		t.Errorf("usage %+v", u)
	}
	if got, err := p.AllocatedBytes("v7"); err != nil || got > 2*mib {
		t.Errorf("a clone of 16 MiB has %d bytes allocated, %v", got, err)
	}
}

func TestClonesShareNoByteThatIsWritten(t *testing.T) {
	p := templatePool(t, nil)
	var made atomic.Int32
	mustCreate(t, p, 64*mib, "a", "b")
	for _, id := range []string{"a", "b"} {
		if err := p.Clone(t.Context(), id, ext4Template("a", &made)); err != nil {
			t.Fatal(err)
		}
	}
	template := filepath.Join(p.templates.dir.Name(), templateNames(t, p)[0])
	before, other := sumOf(t, template), sumOf(t, p.VolumePath("b"))
	f, err := os.OpenFile(p.VolumePath("a"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(bytes.Repeat([]byte("x"), 8*mib), 0)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if sumOf(t, template) != before || sumOf(t, p.VolumePath("b")) != other {
		t.Error("a write to one clone shows elsewhere")
	}
	if err := p.Clone(t.Context(), "a", ext4Template("a", &made)); !errors.Is(err, ErrWritten) {
		t.Errorf("cloned over data: %v", err)
	}
	checkVolume(t, p, "a", bytes.Repeat([]byte("x"), 8*mib))
}

func TestTemplatesThatGo(t *testing.T) {
	var made atomic.Int32
	clone := func(t *testing.T, p *Pool, id, recipe string, size int64) {
		t.Helper()
		mustCreate(t, p, size, id)
		if err := p.Clone(t.Context(), id, ext4Template(recipe, &made)); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("of another recipe", func(t *testing.T) {
		p := templatePool(t, nil)
		clone(t, p, "a", "old", 16*mib)
		clone(t, p, "b", "old", 32*mib)
		clone(t, p, "c", "new", 16*mib)
		if names := templateNames(t, p); len(names) != 1 || usage(t, p).TemplateBytes <= 0 {
			t.Errorf("%v, %+v", names, usage(t, p))
		}
	})
	t.Run("least recently used", func(t *testing.T) {
		p := templatePool(t, func(o *Options) { o.MaxTemplates = 2 })
		clone(t, p, "a", "r", 16*mib)
		clone(t, p, "b", "r", 24*mib)
		clone(t, p, "c", "r", 16*mib)
		clone(t, p, "d", "r", 32*mib)
		names := strings.Join(templateNames(t, p), " ")
		if strings.Count(names, "ext4-") != 2 || strings.Contains(names, fmt.Sprint("-", 24*mib)) {
			t.Errorf("kept: %s", names)
		}
	})
	t.Run("when a volume needs the space", func(t *testing.T) {
		p := templatePool(t, func(o *Options) { o.SizeBytes = 256 * mib })
		clone(t, p, "a", "r", 16*mib)
		u := usage(t, p)
		mustCreate(t, p, u.AvailableBytes()+u.TemplateBytes, "rest")
		if names := templateNames(t, p); len(names) != 0 || usage(t, p).TemplateBytes != 0 {
			t.Errorf("%v, %+v", names, usage(t, p))
		}
		if err := p.Clone(t.Context(), "rest", ext4Template("r", &made)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a template in a pool that is all promised: %v", err)
		}
	})
	t.Run("when they are switched off, and what a crash left", func(t *testing.T) {
		state := stateOn(t, "xfs")
		with := func(n int) func(*Options) { return func(o *Options) { o.MaxTemplates = n } }
		p := openPool(t, state, with(4))
		clone(t, p, "a", "r", 16*mib)
		counted := usage(t, p).TemplateBytes
		interim := filepath.Join(p.templates.dir.Name(), interimPrefix+"a")
		if err := errors.Join(os.WriteFile(interim, []byte("half"), 0o600), p.Close()); err != nil {
			t.Fatal(err)
		}
		p = openPool(t, state, with(4))
		if names := templateNames(t, p); len(names) != 1 || usage(t, p).TemplateBytes != counted {
			t.Errorf("opened again: %v, %+v, want %d bytes", names, usage(t, p), counted)
		}
		p.Close()
		p = openPool(t, state, with(0))
		if names := templateNames(t, p); len(names) != 0 || usage(t, p).TemplateBytes != 0 || p.Templates() {
			t.Errorf("switched off: %v, %+v", names, usage(t, p))
		}
	})
}

// A template that is damaged, or of which mkfs makes nothing, costs a fallback and
// no volume.
func TestTemplatesThatFail(t *testing.T) {
	p := templatePool(t, nil)
	var made atomic.Int32
	mustCreate(t, p, 16*mib, "a", "b", "c", "d", "e")
	if err := p.Clone(t.Context(), "a", ext4Template("r", &made)); err != nil {
		t.Fatal(err)
	}
	template := filepath.Join(p.templates.dir.Name(), templateNames(t, p)[0])
	f, err := os.OpenFile(template, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(make([]byte, 4096), 0)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := p.Clone(t.Context(), "b", ext4Template("r", &made)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("cloned from damage: %v", err)
	}
	if blank, err := p.NeverWritten("b"); err != nil || !blank {
		t.Errorf("after the failure the volume is blank: %v, %v", blank, err)
	}
	if err := p.Clone(t.Context(), "b", ext4Template("r", &made)); err != nil || made.Load() != 2 {
		t.Errorf("made anew: %v, %d times", err, made.Load())
	}

	broken := ext4Template("s", &made)
	broken.Make = func(context.Context, string) error { made.Add(1); return syscall.EIO }
	for range 3 {
		if err := p.Clone(t.Context(), "c", broken); !errors.Is(err, syscall.EIO) {
			t.Errorf("mkfs that fails: %v", err)
		}
	}
	if made.Load() != 3 {
		t.Errorf("mkfs that fails was run %d times", made.Load()-2)
	}

	slow := ext4Template("t", &made)
	slow.Make = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Clone(ctx, "d", slow); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("mkfs that takes long: %v", err)
	}
	if err := p.Close(); err != nil { // ends it
		t.Error(err)
	}
}

func TestNoTemplatesWithoutReflink(t *testing.T) {
	p := openPool(t, stateOn(t, "ext4"), func(o *Options) { o.MaxTemplates = 4 })
	var made atomic.Int32
	mustCreate(t, p, 16*mib, "a")
	if err := p.Clone(t.Context(), "a", ext4Template("r", &made)); !errors.Is(err, errors.ErrUnsupported) || p.Templates() {
		t.Errorf("got %v", err)
	}
}
