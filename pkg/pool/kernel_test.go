//go:build ublk

package pool

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/pool/mountpoint"
	"golang.org/x/sys/unix"
)

// These tests run as root in a guest whose data disk is theirs.
var disk = cmp.Or(os.Getenv("CSI_UBLK_DATA_DISK"), "/dev/ubdb")

func program(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// blankDisk wipes both ends of the disk.
func blankDisk(t *testing.T) {
	t.Helper()
	size, err := blockdev.Size(disk)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	zero := make([]byte, 4*mib)
	_, err1 := f.WriteAt(zero, 0)
	_, err2 := f.WriteAt(zero, size-4*mib)
	if err := errors.Join(err1, err2, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// stateOn returns a state directory on a fresh file system of the disk.
func stateOn(t *testing.T, fsType string) string {
	t.Helper()
	blankDisk(t)
	program(t, "mkfs."+fsType, map[string]string{"ext4": "-qFEnodiscard", "xfs": "-qfK"}[fsType], disk)
	dir := t.TempDir()
	if err := unix.Mount(disk, dir, fsType, 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The kernel lets go of the file of a loop device a moment after the device.
		var err error
		for range 500 {
			if err = unix.Unmount(dir, 0); err == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("unmount %s: %v", dir, err)
	})
	return dir
}

func open1(t *testing.T, o Options) *Pool {
	t.Helper()
	p, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// putDown does to a pool what a reboot does: nothing is mounted, no loop device.
func putDown(t *testing.T, p *Pool) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	at, err := mountpoint.At(p.o.root())
	if err != nil || !at.Mounted {
		t.Fatalf("%s: %+v, %v; Close must leave it mounted", p.o.root(), at, err)
	}
	if err := unix.Unmount(p.o.root(), 0); err != nil {
		t.Fatal(err)
	}
	if p.Kind() != KindImage {
		return
	}
	if err := blockdev.DetachLoop(loopOf(t, p)); err != nil {
		t.Fatal(err)
	}
	// The kernel lets go of the image when the last opener is gone.
	image, err := os.Open(p.o.imagePath())
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if device, err := blockdev.FindLoop(image); err == nil && device == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the loop device did not go away")
		}
	}
}

func loopOf(t *testing.T, p *Pool) string {
	t.Helper()
	image, err := os.Open(p.o.imagePath())
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	device, err := blockdev.FindLoop(image)
	if err != nil || device == "" {
		t.Fatalf("loop device of %s: %q, %v", image.Name(), device, err)
	}
	return device
}

func writeVolume(t *testing.T, p *Pool, id string, size int64, b []byte) {
	t.Helper()
	if err := p.Create(id, size); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(p.VolumePath(id), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(b, 0)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func checkVolume(t *testing.T, p *Pool, id string, want []byte) {
	t.Helper()
	f, err := os.Open(p.VolumePath(id))
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("volume %s does not hold what was written (%v)", id, err)
	}
}

func TestDevicePool(t *testing.T) {
	for _, fsType := range []string{"xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			blankDisk(t)
			o := Options{Name: "disk", Kind: KindDevice, StateDir: t.TempDir(), Device: disk, FSType: fsType}
			p := open1(t, o)
			if !p.Reflink() || p.FSType() != fsType {
				t.Errorf("reflink %v on %s", p.Reflink(), p.FSType())
			}
			data := bytes.Repeat([]byte("data"), mib)
			writeVolume(t, p, "v", 100*mib, data)
			again := open1(t, o) // a restart of the process: mounted already
			again.Close()
			putDown(t, p)

			other := o
			other.Name = "other"
			if _, err := Open(context.Background(), other); err == nil || !strings.Contains(err.Error(), `belongs to pool "disk"`) {
				t.Errorf("opened as another pool: %v", err)
			} else if err := unix.Unmount(other.root(), 0); err != nil {
				t.Errorf("after the refusal: %v", err)
			}
			p = open1(t, o) // after a reboot
			checkVolume(t, p, "v", data)
			if got := usage(t, p).PromisedBytes; got != 100*mib {
				t.Errorf("promised %d", got)
			}
			putDown(t, p)
		})
	}
}

func TestDeviceThatIsNotBlank(t *testing.T) {
	write := func(t *testing.T, offset int64, b string) {
		f, err := os.OpenFile(disk, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte(b), offset)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		put  func(*testing.T)
		says string
	}{
		"a file system":  {func(t *testing.T) { program(t, "mkfs.ext4", "-qFEnodiscard", "-L", "precious", disk) }, `ext4, labelled "precious"`},
		"somebody's XFS": {func(t *testing.T) { program(t, "mkfs.xfs", "-qfK", disk) }, "it holds xfs"},
		"a swap area":    {func(t *testing.T) { program(t, "mkswap", disk) }, "it holds swap"},
		"raw data":       {func(t *testing.T) { write(t, 8192, "a database without a signature") }, "data of an unknown kind"},
		"our label, with another file system than asked for": {func(t *testing.T) { program(t, "mkfs.ext4", "-qFEnodiscard", "-L", fsLabel, disk) }, "it holds ext4"},
	} {
		t.Run(name, func(t *testing.T) {
			blankDisk(t)
			c.put(t)
			before := firstBytes(t)
			_, err := Open(context.Background(), Options{Name: "disk", Kind: KindDevice, StateDir: t.TempDir(), Device: disk})
			if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "wipefs") {
				t.Errorf("got %v, want %q and the remedy", err, c.says)
			}
			if !bytes.Equal(before, firstBytes(t)) {
				t.Error("the device was changed")
			}
		})
	}
	t.Run("mounted elsewhere", func(t *testing.T) {
		stateOn(t, "ext4")
		_, err := Open(context.Background(), Options{Name: "disk", Kind: KindDevice, StateDir: t.TempDir(), Device: disk})
		if !errors.Is(err, syscall.EBUSY) {
			t.Errorf("got %v", err)
		}
	})
}

func firstBytes(t *testing.T) []byte {
	t.Helper()
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 4*mib)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}
