//go:build ublk && linux

package kernel

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

func diskBytes(t *testing.T, f *os.File) (n uint64) {
	t.Helper()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&n))); errno != 0 {
		t.Fatal(errno)
	}
	return n
}

func TestADiskGrowsInUse(t *testing.T) {
	const before, after = 16 << 20, 48 << 20
	n := newNode(t)
	d := n.attach("v", before, client.AttachOptions{})
	f := openDisk(t, d.Path)
	l := startLoad(t, d.Path, "16m", "--time_based=1", "--runtime=3")
	if size, err := n.client.Resize(n.ctx(), "v"); err != nil || size != before {
		t.Errorf("resize of a file that has not grown: %d, %v", size, err)
	}
	if size, err := n.client.Resize(n.ctx(), "w"); err != nil || size != 0 {
		t.Errorf("resize of a volume that is not attached: %d, %v", size, err)
	}
	if err := os.Truncate(n.file("v"), after); err != nil {
		t.Fatal(err)
	}
	info, err := n.client.Info(n.ctx())
	if err != nil {
		t.Fatal(err)
	}
	size, err := n.client.Resize(n.ctx(), "v")
	if !slices.Contains(info.Features, "UPDATE_SIZE") {
		wantCode(t, "resize on a kernel without UPDATE_SIZE", err, codes.Unimplemented)
		l.wait(t)
		f.Close()
		if err := n.client.Detach(n.ctx(), "v"); err != nil {
			t.Fatal(err)
		}
		if d := n.attach("v", after, client.AttachOptions{}); d.SizeBytes != after {
			t.Errorf("attached again it has %d bytes", d.SizeBytes)
		}
		return
	}
	if err != nil || size != after {
		t.Fatalf("resize: %d, %v", size, err)
	}
	if got := diskBytes(t, f); got != after {
		t.Errorf("the disk has %d bytes, want %d", got, after)
	}
	want := bytes.Repeat([]byte{0xab}, 4096)
	writeDisk(t, f, after-4096, want)
	if !bytes.Equal(readDisk(t, f, after-4096, 4096), want) {
		t.Error("what was written behind the old end is not there")
	}
	l.wait(t)

	// The next worker and the next server know of it.
	n.kill()
	n.start()
	n.live("v")
	if d, err := n.client.Get(n.ctx(), "v"); err != nil || d.SizeBytes != after {
		t.Errorf("after a restart: %d bytes, %v", d.SizeBytes, err)
	}
	if !bytes.Equal(readDisk(t, f, after-4096, 4096), want) {
		t.Error("after a restart it is gone")
	}
	if err := os.Truncate(n.file("v"), before); err != nil {
		t.Fatal(err)
	}
	_, err = n.client.Resize(n.ctx(), "v")
	wantCode(t, "resize of a file that got smaller", err, codes.FailedPrecondition)
}
