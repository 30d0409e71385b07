package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// fakeProc is a /proc with two processes of one mount namespace and one of
// another.
func fakeProc(t *testing.T) string {
	t.Helper()
	proc := t.TempDir()
	for pid, p := range map[string]struct{ ns, mounts string }{
		"1":    {"mnt:[1]", "24 1 259:7 / /var/lib/kubelet/x rw shared:1 - ext4 /dev/ublkb7 rw\n25 1 0:5 / /proc rw - proc proc rw\n"},
		"20":   {"mnt:[1]", "not read: a namespace is read once\n"},
		"300":  {"mnt:[2]", "24 1 259:8 / /data rw - xfs /dev/ublkb8 rw\n"},
		"self": {"mnt:[3]", "24 1 259:9 / /no rw - xfs /dev/ublkb9 rw\n"},
	} {
		dir := filepath.Join(proc, pid)
		for _, d := range []string{"ns", "fd"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(p.ns, filepath.Join(dir, "ns/mnt")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(p.mounts), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return proc
}

func TestMountsOfEveryNamespaceCountAsUses(t *testing.T) {
	u := newUsers(fakeProc(t))
	for name, c := range map[string]struct {
		minor uint32
		want  string
	}{
		"mounted by the host":        {7, "mounted at /var/lib/kubelet/x"},
		"mounted in a pod":           {8, "mounted at /data"},
		"mounted nowhere":            {6, ""},
		"an entry that is no number": {9, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := u.of(t.Context(), ublk.DeviceInfo{ID: 1 << 19}, 259, c.minor)
			if err != nil || got != c.want {
				t.Errorf("use %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestAnOpenBlockDeviceCountsAsAUse(t *testing.T) {
	// O_PATH opens a node of any number without there being a disk.
	path := filepath.Join(t.TempDir(), "disk")
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(259, 77))); err != nil {
		t.Fatalf("this test needs root: %v", err)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	uses := make(map[uint64]string)
	scanDescriptors("/proc/self", uses)
	if uses[unix.Mkdev(259, 77)] != "open in process self, server.test" {
		t.Errorf("uses %v, want the open disk", uses)
	}
}

func TestAllWhoAskGetAnAnswerThatIsNotOld(t *testing.T) {
	u := newUsers(fakeProc(t))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			got, err := u.of(context.Background(), ublk.DeviceInfo{ID: 1 << 19}, 259, 7)
			if err != nil || got == "" {
				t.Errorf("use %q, %v", got, err)
			}
		})
	}
	wg.Wait()
}

func TestWhatHoldsADiskInTheKernelCountsAsAUse(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"sys/class/block/ublkb1/holders/dm-3":    "",
		"sys/class/block/ublkb2/holders/.keep":   "",
		"sys/fs/btrfs/f00d/devices/ublkb3":       "",
		"sys/block/loop5/loop/backing_file":      "/dev/ublkb4\n",
		"proc/swaps":                             "Filename Type Size Used Priority\n/dev/ublkb5 partition 1 0 -2\n",
		"sys/class/block/ublkb6/queue/scheduler": "none\n",
	} {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(root, "sys/class/block/ublkb2/holders/.keep")); err != nil {
		t.Fatal(err)
	}
	for disk, want := range map[string]string{
		"ublkb1": "held by dm-3", "ublkb2": "", "ublkb3": "mounted as Btrfs f00d", "ublkb4": "held by loop5", "ublkb5": "used as swap", "ublkb6": "", "ublkb55": "",
	} {
		if got, err := heldInKernel(filepath.Join(root, "sys"), filepath.Join(root, "proc"), disk); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", disk, got, err, want)
		}
	}
}
