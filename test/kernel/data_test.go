//go:build ublk && linux

package kernel

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

func TestEveryBlockReadsBackAsItWasWritten(t *testing.T) {
	rawBytes, fileBytes := "96m", "64m"
	if testing.Short() { // an emulated processor checks some 50 blocks a second
		rawBytes, fileBytes = "12m", "8m"
	}
	n := newNode(t)
	raw := n.attach("raw", 96<<20, client.AttachOptions{})
	startLoad(t, raw.Path, rawBytes).wait(t)
	for _, kind := range []string{"ext4", "xfs"} {
		d := n.attach(kind, 320<<20, client.AttachOptions{QueueDepth: 32})
		dir, unmount := n.mountedDisk(d.Path, kind)
		startLoad(t, filepath.Join(dir, "f"), fileBytes, "--fsync=64").wait(t)
		unmount()
		if out := command(t, map[string]string{"ext4": "e2fsck", "xfs": "xfs_repair"}[kind], map[string]string{"ext4": "-fn", "xfs": "-n"}[kind], d.Path); testing.Verbose() {
			t.Log(out)
		}
	}
}

func TestDiscardedAndZeroedBlocksReadAsZeros(t *testing.T) {
	n := newNode(t)
	d := n.attach("v", 64<<20, client.AttachOptions{})
	f := openDisk(t, d.Path)
	if b := readDisk(t, f, 32<<20, 1<<20); !bytes.Equal(b, make([]byte, 1<<20)) {
		t.Error("a block never written is not zero")
	}
	for name, zero := range map[string]func(off, n int64) error{
		"discard": func(off, n int64) error {
			r := [2]uint64{uint64(off), uint64(n)}
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&r))); errno != 0 {
				return errno
			}
			return nil
		},
		"write zeroes, unmapping": func(off, n int64) error {
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, off, n)
		},
		"write zeroes, keeping space": func(off, n int64) error {
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_ZERO_RANGE, off, n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			const off, size = 4 << 20, 1 << 20
			ones := bytes.Repeat([]byte{0xee}, size)
			writeDisk(t, f, off, ones)
			if err := zero(off+64<<10, size-128<<10); err != nil {
				t.Fatal(err)
			}
			got := readDisk(t, f, off, size)
			want := bytes.Clone(ones)
			clear(want[64<<10 : size-64<<10])
			if !bytes.Equal(got, want) {
				t.Error("the range is not zero, or its neighbours changed")
			}
		})
	}
}

// The disk below the pool loses everything that was not flushed to it: what the
// volume's user has flushed must be in the file after a power cut.
func TestWhatWasFlushedSurvivesAPowerCut(t *testing.T) {
	for name, write := range map[string]func(t *testing.T, f *os.File, off int64, b []byte){
		"by a flush": func(t *testing.T, f *os.File, off int64, b []byte) {
			writeDisk(t, f, off, b)
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
		},
		"by a write with FUA": func(t *testing.T, f *os.File, off int64, b []byte) {
			p := aligned(len(b))
			copy(p, b)
			if _, err := unix.Pwritev2(int(f.Fd()), [][]byte{p}, off, unix.RWF_DSYNC); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			loop := loopDevice(t, 1<<30)
			sectors := command(t, "blockdev", "--getsz", loop)
			const dm = "csi-ublk-power"
			command(t, "dmsetup", "create", dm, "--table", "0 "+sectors+" linear "+loop+" 0")
			t.Cleanup(func() { command(t, "dmsetup", "remove", "--retry", dm) })
			// By its number: /dev/mapper is udev's, which need not be there.
			disk := "/dev/dm-" + command(t, "dmsetup", "info", "-c", "--noheadings", "-o", "minor", dm)
			n := newNodeOn(t, func(pool string) { mount(t, makeFS(t, "xfs", disk), pool, "xfs") })
			command(t, "sync", "-f", n.pool)

			d := n.attach("v", 64<<20, client.AttachOptions{})
			command(t, "sync", "-f", n.pool) // the file's name is the pool's business, not the device's
			f := openDisk(t, d.Path)
			want := bytes.Repeat([]byte("kept"), 64<<10)
			write(t, f, 8<<20, want)
			f.Close()
			// The cut: from here on no write reaches the disk.
			command(t, "dmsetup", "load", dm, "--table", "0 "+sectors+" flakey "+loop+" 0 0 3600 1 drop_writes")
			command(t, "dmsetup", "suspend", "--nolockfs", "--noflush", dm)
			command(t, "dmsetup", "resume", dm)
			if err := n.client.Detach(n.ctx(), "v"); err != nil {
				t.Fatal(err)
			}
			n.nothingLeft()
			command(t, "umount", n.pool)
			command(t, "dmsetup", "load", dm, "--table", "0 "+sectors+" linear "+loop+" 0")
			command(t, "dmsetup", "suspend", "--nolockfs", "--noflush", dm)
			command(t, "dmsetup", "resume", dm)
			command(t, "mount", disk, n.pool)

			b, err := os.ReadFile(n.file("v"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b[8<<20:8<<20+len(want)], want) {
				t.Error("flushed bytes are lost")
			}
		})
	}
}

// A disk below the pool that fails is seen, by the volume's user and by who asks the
// server.
func TestAFailedFlushIsKnown(t *testing.T) {
	loop := loopDevice(t, 1<<30)
	sectors := command(t, "blockdev", "--getsz", loop)
	const dm = "csi-ublk-broken"
	command(t, "dmsetup", "create", dm, "--table", "0 "+sectors+" linear "+loop+" 0")
	t.Cleanup(func() { command(t, "dmsetup", "remove", "--retry", dm) })
	disk := "/dev/dm-" + command(t, "dmsetup", "info", "-c", "--noheadings", "-o", "minor", dm)
	n := newNodeOn(t, func(pool string) { mount(t, makeFS(t, "xfs", disk), pool, "xfs") })
	d := n.attach("v", 64<<20, client.AttachOptions{})
	f := openDisk(t, d.Path)
	writeDisk(t, f, 0, bytes.Repeat([]byte("kept"), 1024))
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if d, err := n.client.Get(n.ctx(), "v"); err != nil || d.IOErrors != 0 || d.DataLost || d.State != client.Live {
		t.Fatalf("a sound volume: %+v, %v", d, err)
	}
	command(t, "dmsetup", "load", dm, "--table", "0 "+sectors+" error")
	command(t, "dmsetup", "suspend", "--nolockfs", "--noflush", dm)
	command(t, "dmsetup", "resume", dm)
	b := aligned(4096)
	_, writeErr := f.WriteAt(b, 1<<20)
	if syncErr := f.Sync(); writeErr == nil && syncErr == nil {
		t.Error("written and flushed to a broken disk")
	}
	known := func() error {
		if d, err := n.client.Get(n.ctx(), "v"); err != nil || d.IOErrors == 0 || !d.DataLost || d.State != client.Failed {
			return fmt.Errorf("%+v, %v", d, err)
		}
		return nil
	}
	n.eventually("the server to know of the lost flush", known)
	f.Close()
	if err := n.client.Detach(n.ctx(), "v"); err != nil {
		t.Fatal(err)
	}
	n.nothingLeft()
	if err := unix.Unmount(n.pool, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
}

// aligned returns memory that direct I/O takes.
func aligned(n int) []byte {
	const align = 4096
	b := make([]byte, n+align)
	return b[align-int(uintptr(unsafe.Pointer(&b[0]))%align):][:n]
}

func openDisk(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func writeDisk(t *testing.T, f *os.File, off int64, data []byte) {
	t.Helper()
	b := aligned(len(data))
	copy(b, data)
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

func readDisk(t *testing.T, f *os.File, off int64, n int) []byte {
	t.Helper()
	b := aligned(n)
	if got, err := f.ReadAt(b, off); err != nil {
		t.Fatal(fmt.Errorf("read %d bytes: %w", got, err))
	}
	return b
}
