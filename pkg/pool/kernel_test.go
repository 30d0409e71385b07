//go:build ublk

package pool

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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

func command(t *testing.T, name string, args ...string) string {
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
	command(t, "mkfs."+fsType, map[string]string{"ext4": "-qFEnodiscard", "xfs": "-qfK"}[fsType], disk)
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
		"a file system":  {func(t *testing.T) { command(t, "mkfs.ext4", "-qFEnodiscard", "-L", "precious", disk) }, `ext4, labelled "precious"`},
		"somebody's XFS": {func(t *testing.T) { command(t, "mkfs.xfs", "-qfK", disk) }, "it holds xfs"},
		"a swap area":    {func(t *testing.T) { command(t, "mkswap", disk) }, "it holds swap"},
		"raw data":       {func(t *testing.T) { write(t, 8192, "a database without a signature") }, "data of an unknown kind"},
		"our label, with another file system than asked for": {func(t *testing.T) { command(t, "mkfs.ext4", "-qFEnodiscard", "-L", fsLabel, disk) }, "it holds ext4"},
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

func TestImagePool(t *testing.T) {
	for _, fsType := range []string{"xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			state := stateOn(t, "ext4")
			o := Options{Name: "image", Kind: KindImage, StateDir: state, SizeBytes: 1 << 30, FSType: fsType}
			p := open1(t, o)
			if !p.Reflink() {
				t.Error("no reflink")
			}
			loop := strings.TrimPrefix(loopOf(t, p), "/dev/")
			for file, want := range map[string]string{"autoclear": "0", "dio": "1"} {
				got, err := os.ReadFile(filepath.Join("/sys/block", loop, "loop", file))
				if err != nil || strings.TrimSpace(string(got)) != want {
					t.Errorf("loop %s is %q, %v; want %s", file, got, err, want)
				}
			}
			data := bytes.Repeat([]byte("data"), mib)
			writeVolume(t, p, "v", 100*mib, data)
			again := open1(t, o)
			again.Close()
			if got := "/dev/" + loop; loopOf(t, p) != got {
				t.Errorf("opening again took another loop device than %s", got)
			}
			putDown(t, p)
			p = open1(t, o) // after a reboot
			checkVolume(t, p, "v", data)
			small := usage(t, p).CapacityBytes
			p.Close()

			o.SizeBytes = 2 << 30 // while mounted and in use
			p = open1(t, o)
			if got := usage(t, p).CapacityBytes; got < small+900*mib {
				t.Errorf("grown from 1 to 2 GiB, and capacity from %d to %d", small, got)
			}
			checkVolume(t, p, "v", data)
			o.SizeBytes = 1 << 30
			if _, err := Open(context.Background(), o); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "can grow and not shrink") {
				t.Errorf("a smaller size: %v", err)
			}
			putDown(t, p)
		})
	}
}

func TestImageGrowthThatDiedHalfWay(t *testing.T) {
	state := stateOn(t, "ext4")
	o := Options{Name: "image", Kind: KindImage, StateDir: state, SizeBytes: 1 << 30}
	p := open1(t, o)
	small := usage(t, p).CapacityBytes
	putDown(t, p)
	// The image has its new size, the file system not yet.
	if err := os.Truncate(o.imagePath(), 2<<30); err != nil {
		t.Fatal(err)
	}
	o.SizeBytes = 2 << 30
	p = open1(t, o)
	if got := usage(t, p).CapacityBytes; got < small+900*mib {
		t.Errorf("capacity %d, was %d with half the size", got, small)
	}
	putDown(t, p)
}

func TestImageOnADiskWithoutRoom(t *testing.T) {
	state := stateOn(t, "ext4")
	o := Options{Name: "image", Kind: KindImage, StateDir: state, SizeBytes: 1 << 40}
	if _, err := Open(context.Background(), o); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	left, err := os.ReadDir(filepath.Join(state, "images"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestPreallocatedImage(t *testing.T) {
	state := stateOn(t, "ext4")
	o := Options{Name: "image", Kind: KindImage, StateDir: state, SizeBytes: 1 << 30, Preallocate: true}
	p := open1(t, o)
	var st unix.Stat_t
	if err := unix.Stat(o.imagePath(), &st); err != nil || allocated(st) < 1<<30 {
		t.Errorf("the image takes %d bytes of its disk, %v", allocated(st), err)
	}
	putDown(t, p)
}

func TestDeletedVolumesGiveTheDiskItsSpaceBack(t *testing.T) {
	state := stateOn(t, "ext4")
	o := Options{Name: "image", Kind: KindImage, StateDir: state, SizeBytes: 2 << 30}
	p := open1(t, o)
	defer putDown(t, p)
	takes := func() int64 {
		var st unix.Stat_t
		if err := unix.Stat(o.imagePath(), &st); err != nil {
			t.Fatal(err)
		}
		return allocated(st)
	}
	empty := takes()
	for i := range 4 {
		writeVolume(t, p, fmt.Sprintf("v%d", i), 200*mib, make([]byte, 25*mib))
	}
	if full := takes(); full < empty+100*mib {
		t.Fatalf("100 MiB written, and the image went from %d to %d bytes", empty, full)
	}
	free := usage(t, p).FreeBytes
	for i := range 4 {
		if err := p.Delete(fmt.Sprintf("v%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	reclaimAll(t, p)
	if got := usage(t, p).FreeBytes; got < free+90*mib {
		t.Errorf("free went from %d to %d", free, got)
	}
	// Discards follow the journal.
	for deadline := time.Now().Add(20 * time.Second); takes() > empty+30*mib; time.Sleep(50 * time.Millisecond) {
		if err := p.Flush(); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the image still takes %d bytes, %d when empty", takes(), empty)
		}
	}
}

func TestPathPool(t *testing.T) {
	for fsType, reflink := range map[string]bool{"xfs": true, "ext4": false} {
		t.Run(fsType, func(t *testing.T) {
			dir := filepath.Join(stateOn(t, fsType), "somewhere")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			o := Options{Name: "path", Kind: KindPath, StateDir: t.TempDir(), Path: dir}
			p := open1(t, o)
			if p.Reflink() != reflink || p.FSType() != fsType {
				t.Errorf("reflink %v on %s", p.Reflink(), p.FSType())
			}
			if err := p.Create("v", mib); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "volumes", "v")); err != nil {
				t.Error(err)
			}
			again := open1(t, o)
			again.Close()
			before := usage(t, p).CapacityBytes
			if err := os.WriteFile(filepath.Join(dir, "..", "foreign"), make([]byte, 50*mib), 0o600); err != nil {
				t.Fatal(err)
			}
			unix.Sync()
			if err := p.Measure(); err != nil {
				t.Fatal(err)
			}
			if got := usage(t, p).CapacityBytes; got > before-45*mib {
				t.Errorf("others took 50 MiB, and capacity went from %d to %d", before, got)
			}
			putDown(t, p)
			putDown(t, open1(t, o))
		})
	}
}

func TestPathPoolWhoseDirectoryIsMissing(t *testing.T) {
	_, err := Open(context.Background(), Options{Name: "path", Kind: KindPath, StateDir: t.TempDir(), Path: "/nowhere"})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("got %v", err)
	}
}
