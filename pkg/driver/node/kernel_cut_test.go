//go:build ublk

package node

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/cut"
)

// sequence counts up in a file, each number synced before the next, until stop.
type sequence struct {
	acked atomic.Uint64 // the last number that is durable
	stop  chan struct{}
	done  chan error
}

func writeSequence(path string) *sequence {
	s := &sequence{stop: make(chan struct{}), done: make(chan error, 1)}
	go func() { s.done <- s.run(path) }()
	return s
}

func (s *sequence) run(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 8)
	for n := uint64(1); ; n++ {
		select {
		case <-s.stop:
			return nil
		default:
		}
		binary.LittleEndian.PutUint64(b, n)
		if _, err := f.WriteAt(b, int64(n-1)*8); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		s.acked.Store(n)
	}
}

// readSequence returns the last number of a file, and fails unless all before are there.
func readSequence(t *testing.T, path string) uint64 {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return 0
	}
	for i := range len(b) / 8 {
		if n := binary.LittleEndian.Uint64(b[i*8:]); n != uint64(i+1) {
			t.Errorf("number %d is %d, of %d", i+1, n, len(b)/8)
			return 0
		}
	}
	return uint64(len(b) / 8)
}

// Copies of a volume under I/O have everything that was synced before the cut, nothing
// that was begun after it, and their file systems need no repair.
func TestCutUnderIO(t *testing.T) {
	for _, fsType := range mount.FSTypes {
		t.Run(fsType, func(t *testing.T) {
			v := newVolume(t, newService(t), mountCapability(fsType), 512*mib)
			v.must(v.stage(), v.publish("a", false))
			freezer, err := mount.NewFreezer(filepath.Join(t.TempDir(), "frozen"), world.devices.GuardFrozen)
			v.must(err)
			cutter := &cut.Cutter{Devices: world.devices, Freezer: freezer}
			s := writeSequence(filepath.Join(v.target("a"), "numbers"))
			type limits struct{ least, most uint64 }
			var copies []*volume
			var bounds []limits
			for range 3 {
				time.Sleep(200 * time.Millisecond)
				c := newVolume(t, v.s, v.cap, 512*mib)
				v.must(world.pool.Delete(c.id))
				to, err := world.pool.CopyToVolume(c.id, 512*mib)
				v.must(err)
				least := s.acked.Load()
				at, err := cutter.Volumes(context.Background(), cut.Copy{Volume: v.id, To: to})
				most := s.acked.Load() + 1
				v.must(err, to.Finish())
				to.Drop()
				t.Logf("%s: held for %v, numbers %d to %d", fsType, at.Held, least, most)
				if at.Held <= 0 || time.Since(at.At) > time.Minute {
					t.Errorf("cut %+v", at)
				}
				copies, bounds = append(copies, c), append(bounds, limits{least, most})
			}
			for i, c := range copies {
				v.must(c.stage(), c.publish("a", false))
				got := readSequence(t, filepath.Join(c.target("a"), "numbers"))
				if got < bounds[i].least || got > bounds[i].most {
					t.Errorf("copy %d has the numbers up to %d, want %d to %d", i, got, bounds[i].least, bounds[i].most)
				}
				c.down("a")
			}
			close(s.stop)
			v.must(<-s.done)
			v.down("a")
		})
	}
}

// A raw block volume is cut without a freeze, and one that nobody has attached by the
// pool.
func TestCutOfOthers(t *testing.T) {
	v := newVolume(t, newService(t), blockCapability(), 64*mib)
	freezer, err := mount.NewFreezer(filepath.Join(t.TempDir(), "frozen"), world.devices.GuardFrozen)
	v.must(err)
	cutter := &cut.Cutter{Devices: world.devices, Freezer: freezer}
	snapshot := func(id string) (at pool.Cut) {
		t.Helper()
		c, err := world.pool.CopyToSnapshot(id, v.id, func() pool.Cut { return at })
		v.must(err)
		defer c.Drop()
		at, err = cutter.Volumes(context.Background(), cut.Copy{Volume: v.id, To: c})
		v.must(err, c.Finish())
		t.Cleanup(func() { v.must(world.pool.DeleteSnapshot(id)) })
		return at
	}
	v.must(v.stage(), v.publish("a", false))
	f, err := os.OpenFile(v.target("a"), os.O_WRONLY, 0)
	v.must(err)
	_, err = f.Write([]byte("attached"))
	v.must(err, f.Sync(), f.Close())
	if at := snapshot("attached"); at.Held <= 0 {
		t.Errorf("an attached volume was cut without holding its requests: %+v", at)
	}
	v.down("a")
	if at := snapshot("detached"); at.Held != 0 {
		t.Errorf("a volume without a device was held: %+v", at)
	}
	for _, id := range []string{"attached", "detached"} {
		c := restored(t, v, id, 64*mib)
		b := make([]byte, 8)
		f, err := os.Open(world.pool.VolumePath(c.id))
		v.must(err)
		_, err = f.ReadAt(b, 0)
		if err := errors.Join(err, f.Close()); err != nil || string(b) != "attached" {
			t.Errorf("snapshot %s reads %q, %v", id, b, err)
		}
	}
}
