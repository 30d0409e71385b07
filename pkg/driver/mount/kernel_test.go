//go:build ublk

package mount

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"golang.org/x/sys/unix"
)

// These tests run as root in a guest whose data disk is theirs. Loop devices do for
// the volumes': what is tested is the file systems.

const gib = 1 << 30

func program(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// newPool is a pool on the data disk, which it may find formatted by an earlier
// test.
func newPool(t testing.TB) *pool.Pool {
	t.Helper()
	disk := cmp.Or(os.Getenv("CSI_UBLK_DATA_DISK"), "/dev/ubdb")
	program(t, "mkfs.xfs", "-qfK", disk)
	state := t.TempDir()
	dir := filepath.Join(state, "pools", "default")
	if err := errors.Join(os.MkdirAll(dir, 0o700), unix.Mount(disk, dir, "xfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	p, err := pool.Open(t.Context(), pool.Options{Name: "default", Kind: pool.KindPath, StateDir: state, Path: dir, MaxTemplates: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := p.Close()
		for range 500 { // the kernel lets go of the file of a loop device a moment after the device
			if err = errors.Join(err, unix.Unmount(dir, 0)); err == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
			err = nil
		}
		t.Errorf("unmount %s: %v", dir, err)
	})
	return p
}

// clone is a volume that was cloned from a template.
type clone struct {
	t    *testing.T
	path string // of the volume's file
	dir  string // where it is mounted
}

func newClone(t *testing.T, p *pool.Pool, id string, size int64, template pool.Template) *clone {
	t.Helper()
	if err := errors.Join(p.Create(id, size), p.Clone(t.Context(), id, template)); err != nil {
		t.Fatal(err)
	}
	return &clone{t: t, path: p.VolumePath(id), dir: t.TempDir()}
}

func (c *clone) mounted(fsType string, act func()) {
	c.t.Helper()
	device, err := blockdev.AttachLoop(c.path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() {
		if err := blockdev.DetachLoop(device); err != nil {
			c.t.Error(err)
		}
	}()
	if err := Mount(device, c.dir, fsType, Flags{}); err != nil {
		c.t.Fatal(err)
	}
	defer func() {
		if err := Unmount(c.dir); err != nil {
			c.t.Error(err)
		}
	}()
	act()
}

func (c *clone) uuid() string {
	c.t.Helper()
	content, err := blockdev.Probe(c.t.Context(), c.path)
	if err != nil {
		c.t.Fatal(err)
	}
	return content.UUID
}

func fileSum(t *testing.T, path string) [32]byte {
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
	return [32]byte(h.Sum(nil))
}

// kernelLog returns the kernel's messages about file systems.
func kernelLog(t *testing.T) []string {
	t.Helper()
	b := make([]byte, 1<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(b[:n])) {
		if strings.Contains(line, "XFS") || strings.Contains(line, "EXT4-fs") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Two clones of one template, mounted at the same time: their UUIDs differ, the
// file systems are sound before and after, neither sees the other's bytes, the
// template stays as it is, and the kernel finds nothing to say.
func TestClonesAreFileSystems(t *testing.T) {
	check := map[string][]string{"ext4": {"e2fsck", "-fn"}, "xfs": {"xfs_repair", "-n"}}
	for fsType := range templateArgs {
		t.Run(fsType, func(t *testing.T) {
			p := newPool(t)
			template, err := newFormatter(t).Template(t.Context(), "p", fsType)
			if err != nil {
				t.Fatal(err)
			}
			before := kernelLog(t)
			a, b := newClone(t, p, "a", gib, template), newClone(t, p, "b", gib, template)
			templates, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(a.path)), "templates", "*"))
			if err != nil || len(templates) != 1 {
				t.Fatalf("templates: %v, %v", templates, err)
			}
			sum := fileSum(t, templates[0])
			sound := func() {
				for _, c := range []*clone{a, b} {
					program(t, check[fsType][0], append(check[fsType][1:], c.path)...)
				}
			}
			sound()
			if a.uuid() == b.uuid() || a.uuid() == "" {
				t.Errorf("UUIDs %q and %q", a.uuid(), b.uuid())
			}
			if got, err := p.AllocatedBytes("a"); err != nil || got > 2<<20 {
				t.Errorf("a clone of 1 GiB has %d bytes allocated, %v", got, err)
			} else {
				t.Logf("a clone of 1 GiB has %d bytes allocated", got)
			}
			write := func(c *clone, what string) {
				if err := os.WriteFile(filepath.Join(c.dir, "file"), bytes.Repeat([]byte(what), 1<<20), 0o600); err != nil {
					t.Error(err)
				}
			}
			a.mounted(fsType, func() { b.mounted(fsType, func() { write(a, "a"); write(b, "b") }) })
			sound()
			for what, c := range map[string]*clone{"a": a, "b": b} {
				c.mounted(fsType, func() {
					if got, err := os.ReadFile(filepath.Join(c.dir, "file")); err != nil || !bytes.Equal(got, bytes.Repeat([]byte(what), 1<<20)) {
						t.Errorf("%s reads other bytes (%v)", what, err)
					}
				})
			}
			if fileSum(t, templates[0]) != sum {
				t.Error("the template was changed")
			}
			complaints(t, before)
		})
	}
}

var anyUUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// complaints fails for what the kernel has logged since and is no routine.
func complaints(t *testing.T, before []string) {
	t.Helper()
	after := kernelLog(t)
	seen := make(map[string]bool)
	for _, line := range before {
		seen[line] = true
	}
	found := 0
	for _, line := range after {
		if seen[line] {
			continue
		}
		found++
		lower := strings.ToLower(anyUUID.ReplaceAllString(line, "")) // one may spell a bad word
		for _, word := range []string{"error", "corrupt", "warn", "mismatch", "duplicate", "bad", "fail", "recover", "invalid"} {
			if strings.Contains(lower, word) {
				t.Errorf("the kernel says: %s", line)
			}
		}
	}
	if found == 0 {
		t.Error("the kernel's log has not even the mounts")
	}
}

// What one volume costs, with mkfs and with a template.
func BenchmarkNewFileSystem(b *testing.B) {
	for _, fsType := range FSTypes {
		formats, err := NewFormatter(Options{IntentDir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		run := func(name string, act func(p *pool.Pool, id string) error) {
			b.Run(name+"/"+fsType, func(b *testing.B) {
				p := newPool(b)
				one := func() {
					b.StopTimer()
					if err := p.Create("v", gib); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					if err := act(p, "v"); err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					if err := os.Remove(p.VolumePath("v")); err != nil {
						b.Fatal(err)
					}
					_, _ = p.Size("v") // it counts no longer
					b.StartTimer()
				}
				one() // the template is made once
				b.ResetTimer()
				for range b.N {
					one()
				}
			})
		}
		run("mkfs", func(p *pool.Pool, id string) error {
			return formats.Format(context.Background(), "p", id, p.VolumePath(id), fsType)
		})
		run("clone", func(p *pool.Pool, id string) error {
			template, err := formats.Template(context.Background(), "p", fsType)
			if err != nil {
				return err
			}
			return p.Clone(context.Background(), id, template)
		})
	}
}

// A bind mount has what it was asked to have, and what its source has, and changes
// nothing of that.
func TestBind(t *testing.T) {
	source := t.TempDir()
	if err := unix.Mount("none", source, "tmpfs", unix.MS_NODEV|unix.MS_NOATIME, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(source, 0) })
	const all = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_NOATIME | unix.ST_NODIRATIME | unix.ST_RELATIME
	flags := func(path string) int64 {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Flags & all
	}
	of := flags(source)
	for options, want := range map[string]int64{
		"":                    of,
		"ro":                  of | unix.ST_RDONLY,
		"noexec,nosuid":       of | unix.ST_NOEXEC | unix.ST_NOSUID,
		"dev":                 of &^ unix.ST_NODEV,
		"relatime":            of&^unix.ST_NOATIME | unix.ST_RELATIME,
		"strictatime":         of &^ unix.ST_NOATIME,
		"nodiratime,ro,dev,":  of&^unix.ST_NODEV | unix.ST_NODIRATIME | unix.ST_RDONLY,
		"noatime,sync,silent": of, // what a bind mount can't have of its own
	} {
		t.Run(options, func(t *testing.T) {
			f, err := ParseFlags([]string{options})
			if err != nil {
				t.Fatal(err)
			}
			target := t.TempDir()
			if err := Bind(source, target, f); err != nil {
				t.Fatal(err)
			}
			defer unix.Unmount(target, 0)
			if got := flags(target); got != want {
				t.Errorf("flags %#x, want %#x", got, want)
			}
			if got := flags(source); got != of {
				t.Errorf("the source's flags were %#x and are %#x", of, got)
			}
		})
	}
	if err := Bind(source, filepath.Join(source, "none"), Flags{}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("to a target that is not there: %v", err)
	}
}
