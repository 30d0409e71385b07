//go:build ublk

package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// grow does what the controller and the reconciler do before kubelet calls.
func (v *volume) grow(size int64) {
	v.t.Helper()
	v.must(world.pool.Grow(v.id, size))
}

func (v *volume) expand(path string, size int64) (int64, error) {
	r, err := v.s.NodeExpandVolume(context.Background(), &csi.NodeExpandVolumeRequest{
		VolumeId: v.id, VolumePath: path, StagingTargetPath: v.staging, VolumeCapability: v.cap, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	})
	return r.GetCapacityBytes(), err
}

// total is the size that a pod sees: of the file system, or of the device.
func (v *volume) total(path string) int64 {
	v.t.Helper()
	if v.cap.GetBlock() != nil {
		size, err := blockdev.Size(path)
		v.must(err)
		return size
	}
	var st unix.Statfs_t
	v.must(unix.Statfs(path, &st))
	return int64(st.Blocks) * st.Frsize
}

// fills fails unless what is at path has the given size, less what a file system
// takes for itself.
func (v *volume) fills(path string, size int64) {
	v.t.Helper()
	least := size
	if v.cap.GetBlock() == nil {
		least = size*9/10 - 16*mib
	}
	if total := v.total(path); total < least || total > size {
		v.t.Errorf("%s has %d bytes, the volume %d", path, total, size)
	}
}

// writer overwrites blocks of one file or device at random until it is stopped, and
// then knows what must be there.
type writer struct {
	f    *os.File
	sums map[int64][32]byte // by offset
	quit chan struct{}
	done chan error
	n    atomic.Int64
}

const writerBlock = 64 << 10

func startWriter(path string, bytesMax int64) (*writer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	w := &writer{f: f, sums: map[int64][32]byte{}, quit: make(chan struct{}), done: make(chan error, 1)}
	go func() { w.done <- w.run(bytesMax) }()
	return w, nil
}

func (w *writer) run(bytesMax int64) error {
	rnd := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, writerBlock)
	for {
		select {
		case <-w.quit:
			return nil
		default:
		}
		for i := 0; i < len(b); i += 8 {
			u := rnd.Uint64()
			for j := range 8 {
				b[i+j] = byte(u >> (8 * j))
			}
		}
		offset := rnd.Int64N(bytesMax/writerBlock) * writerBlock
		if _, err := w.f.WriteAt(b, offset); err != nil {
			return err
		}
		if w.n.Add(1)%16 == 0 {
			if err := w.f.Sync(); err != nil {
				return err
			}
		}
		w.sums[offset] = sha256.Sum256(b)
	}
}

// stop ends the writer, whose writes are on disk then.
func (w *writer) stop() error {
	close(w.quit)
	if err := <-w.done; err != nil {
		return errors.Join(fmt.Errorf("the writer was disturbed: %w", err), w.f.Close())
	}
	return errors.Join(w.f.Sync(), w.f.Close())
}

// check reads back from the disk what was written.
func (w *writer) check(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	if len(w.sums) == 0 {
		return errors.New("nothing was written")
	}
	b := make([]byte, writerBlock)
	for offset, sum := range w.sums {
		if _, err := f.ReadAt(b, offset); err != nil {
			return err
		}
		if sha256.Sum256(b) != sum {
			return fmt.Errorf("other bytes at %d", offset)
		}
	}
	return nil
}

// kinds are what a pod can have of a volume.
var kinds = map[string]func() *csi.VolumeCapability{
	"ext4":  func() *csi.VolumeCapability { return mountCapability("ext4") },
	"xfs":   func() *csi.VolumeCapability { return mountCapability("xfs") },
	"btrfs": func() *csi.VolumeCapability { return mountCapability("btrfs") },
	"block": blockCapability,
}

// dataPath is where a pod writes.
func (v *volume) dataPath(pod string) string {
	if v.cap.GetBlock() != nil {
		return v.target(pod)
	}
	return filepath.Join(v.target(pod), "file")
}

// volumePath is what kubelet gives: the staging path, or that of a pod's device node.
func (v *volume) volumePath(pod string) string {
	if v.cap.GetBlock() != nil {
		return v.target(pod)
	}
	return v.staging
}

func TestGrownWhileUnstaged(t *testing.T) {
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t, newService(t), c(), 384*mib)
			v.must(v.stage(), v.publish("a", false))
			w, err := startWriter(v.dataPath("a"), 64*mib)
			v.must(err)
			time.Sleep(100 * time.Millisecond)
			v.must(w.stop())
			v.down("a")
			// The last leaves a remainder that no file system uses.
			for _, size := range []int64{512 * mib, 2 * gib, 2*gib + mib} {
				v.grow(size)
				v.must(v.stage(), v.stage(), v.publish("a", false))
				v.fills(v.target("a"), size)
				// Kubelet asks all the same.
				if got, err := v.expand(v.volumePath("a"), size); err != nil || got != size {
					t.Errorf("%d, %v", got, err)
				}
				v.must(w.check(v.dataPath("a")))
				v.down("a")
			}
		})
	}
}

// What is restored larger than its source has its size before a pod sees it.
func TestRestoredLarger(t *testing.T) {
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t, newService(t), c(), 384*mib)
			v.must(v.stage(), v.publish("a", false))
			w, err := startWriter(v.dataPath("a"), 64*mib)
			v.must(err)
			time.Sleep(100 * time.Millisecond)
			v.must(w.stop())
			r := restored(t, v, cutOf(t, v), gib)
			v.must(r.stage(), r.publish("a", false))
			r.fills(r.target("a"), gib)
			v.must(w.check(r.dataPath("a")), w.check(v.dataPath("a")))
			r.down("a")
			v.down("a")
		})
	}
}

// fixed is a device server of a kernel that can't resize devices.
type fixed struct{ Devices }

func (fixed) Resize(context.Context, string) (uint64, error) {
	return 0, status.Error(codes.Unimplemented, "no UPDATE_SIZE")
}

func TestExpandWhereTheKernelCannot(t *testing.T) {
	s := newService(t)
	s.o.Devices = fixed{s.o.Devices}
	v := newVolume(t, s, mountCapability("ext4"), 64*mib)
	v.must(v.stage(), v.publish("a", false))
	v.grow(128 * mib)
	_, err := v.expand(v.staging, 128*mib)
	v.wantCode("growth of a device in use", err, codes.FailedPrecondition)
	if err == nil || !strings.Contains(err.Error(), "next staged") {
		t.Errorf("it does not say what to do: %v", err)
	}
	v.fills(v.target("a"), 64*mib)
	v.down("a")
	v.must(v.stage(), v.publish("a", false))
	v.fills(v.target("a"), 128*mib)
	v.down("a")
}

func TestExpandThatIsRefused(t *testing.T) {
	s := newService(t)
	v := newVolume(t, s, mountCapability("ext4"), 64*mib)
	_, err := v.expand(v.staging, 64*mib)
	v.wantCode("not staged", err, codes.FailedPrecondition)
	v.must(v.stage(), v.publish("a", true))
	_, err = v.expand(v.pods, 64*mib)
	v.wantCode("a path where it is not", err, codes.NotFound)
	_, err = v.expand(v.target("a"), 64*mib)
	v.wantCode("a read-only path", err, codes.FailedPrecondition)
	_, err = s.NodeExpandVolume(context.Background(), &csi.NodeExpandVolumeRequest{
		VolumeId: v.id, VolumePath: v.staging, CapacityRange: &csi.CapacityRange{RequiredBytes: mib, LimitBytes: 32 * mib},
	})
	v.wantCode("a limit below what it has", err, codes.OutOfRange)
	v.down("a")
}
