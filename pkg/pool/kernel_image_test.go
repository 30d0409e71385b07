//go:build ublk

package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
	small = usage(t, p).CapacityBytes
	p.Close()
	// The same while it is mounted, as when the plugin is started again.
	if err := os.Truncate(o.imagePath(), 3<<30); err != nil {
		t.Fatal(err)
	}
	o.SizeBytes = 3 << 30
	p = open1(t, o)
	if got := usage(t, p).CapacityBytes; got < small+900*mib {
		t.Errorf("mounted: capacity %d, was %d with two thirds of the size", got, small)
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
	// It has its size, and not all of its bytes.
	o.SizeBytes = 2 << 30
	if err := os.Truncate(o.imagePath(), o.SizeBytes); err != nil {
		t.Fatal(err)
	}
	p = open1(t, o)
	if err := unix.Stat(o.imagePath(), &st); err != nil || allocated(st) < o.SizeBytes {
		t.Errorf("the grown image takes %d bytes of its disk, %v", allocated(st), err)
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
	// A few blocks of the file system were there before.
	if full := takes(); full < empty+99*mib {
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
