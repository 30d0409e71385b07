//go:build ublk && linux

package ublk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// A volumeFS is a file system of the test's own, on a disk whose traffic can be
// watched.
type volumeFS struct {
	dir   string
	stats string // .../stat of the block device below; "" for tmpfs
}

// newFS makes a file system of a kind on a loop device, and mounts it.
func newFS(t testing.TB, kind string) volumeFS {
	t.Helper()
	dir := t.TempDir()
	if kind == "tmpfs" {
		mount(t, "tmpfs", dir, "tmpfs", "size=300m")
		return volumeFS{dir: dir}
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 400<<20); err != nil {
		t.Fatal(err)
	}
	loop := run(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() { run(t, "losetup", "-d", loop) })
	run(t, "mkfs."+kind, "-q", loop)
	mount(t, loop, dir, kind, "")
	return volumeFS{dir: dir, stats: "/sys/block/" + filepath.Base(loop) + "/stat"}
}

func mount(t testing.TB, source, dir, kind, data string) {
	t.Helper()
	if err := unix.Mount(source, dir, kind, 0, data); err != nil {
		t.Fatalf("mount %s of %s: %v", kind, source, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// flushes counts the flushes that have reached the disk below
// (Documentation/block/stat.rst).
func (v volumeFS) flushes(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile(v.stats)
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b))
	if len(f) < 16 {
		t.Fatalf("%s has %d fields", v.stats, len(f))
	}
	n, err := strconv.Atoi(f[15])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// discard and zero are what a disk's user calls.
func discard(f *os.File, off, n int64) error {
	r := [2]uint64{uint64(off), uint64(n)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return fmt.Errorf("BLKDISCARD: %w", errno)
	}
	return nil
}

func zero(f *os.File, off, n int64, keep bool) error {
	mode := uint32(unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE)
	if keep {
		mode = unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_ZERO_RANGE
	}
	return unix.Fallocate(int(f.Fd()), mode, off, n)
}

func writeDurably(f *os.File, b []byte, off int64) error {
	n, err := unix.Pwritev2(int(f.Fd()), [][]byte{b}, off, unix.RWF_DSYNC)
	if err == nil && n != len(b) {
		err = fmt.Errorf("%d of %d bytes", n, len(b))
	}
	return err
}
