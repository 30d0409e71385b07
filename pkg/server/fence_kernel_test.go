//go:build ublk && linux

package server

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

const volumeBytes = 16 << 20

// A write is with the disk when its worker is killed. The new worker does it
// again, the user overwrites it and is told that it is done; then the first one
// lands. The fence keeps the order; the test without it shows that the loss is
// real, and that this test would see it.
func TestAWriteOfADeadWorkerNeverLandsOnANewerOne(t *testing.T) {
	for name, c := range map[string]struct {
		fenced bool
		want   byte
	}{
		"with the fence the newer write stays":     {true, 'B'},
		"without it the newer write would be lost": {false, 'A'},
	} {
		t.Run(name, func(t *testing.T) {
			s, disk, user := slowVolume(t, c.fenced)
			first, second := block('A'), block('B')
			disk.keep(first[:512])
			written := make(chan error, 1)
			go func() { written <- write(user, first) }()
			wait(t, "the write to reach the disk", disk.kept)
			kill(t, s, "v")
			if c.fenced {
				time.Sleep(2 * time.Second)
				if d, _ := s.table.get("v"); d.State != serverv1.Device_RECOVERING {
					t.Errorf("with the old write under way the volume is %s", d.State)
				}
				close(disk.release)
			}
			waitFor(t, "the volume to be live", func() bool { d, _ := s.table.get("v"); return d.State == serverv1.Device_LIVE })
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			if err := write(user, second); err != nil {
				t.Fatal(err)
			}
			if !c.fenced {
				close(disk.release)
			}
			wait(t, "the old write to land", disk.landed)
			if got := read(t, user); !bytes.Equal(got, block(c.want)) {
				t.Errorf("after an acknowledged write of B the disk reads %q, want %q", got[:4], c.want)
			}
		})
	}
}

// The next server must keep the fence of the one that was killed.
func TestAFenceOutlivesItsServer(t *testing.T) {
	s, disk, user := slowVolume(t, true)
	first := block('A')
	disk.keep(first[:512])
	written := make(chan error, 1)
	go func() { written <- write(user, first) }()
	wait(t, "the write to reach the disk", disk.kept)
	kill(t, s, "v")
	// What a new server does with what it finds, while the old one has the lock.
	found, err := openFences(s.fenceDir)
	if err != nil {
		t.Fatal(err)
	}
	up := 0
	for _, f := range found {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if f.wait(ctx) != nil {
			up++
		}
		cancel()
		f.close()
	}
	if up == 0 {
		t.Error("no fence is up while a write is under way")
	}
	close(disk.release)
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// A disk that hangs holds up the volumes of its own pool, and no others: those are
// attached, served and recovered as if it were not there.
func TestADiskThatHangsHoldsUpItsOwnPoolOnly(t *testing.T) {
	s, disk, user := slowVolume(t, true)
	elsewhere := filepath.Join(s.poolsDir, "q")
	if err := os.Mkdir(elsewhere, 0o700); err != nil {
		t.Fatal(err)
	}
	attach := func(id string) *os.File {
		t.Helper()
		path := filepath.Join(elsewhere, id)
		if err := os.WriteFile(path, make([]byte, volumeBytes), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		d, err := s.attach(ctx, attachSpec{volume: id, path: path, queues: 1, depth: 16})
		if err != nil {
			t.Fatalf("attach of a volume on a disk that is well: %v", err)
		}
		f, err := os.OpenFile(d.Path, os.O_RDWR|unix.O_DIRECT, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			f.Close()
			if err := s.detach(context.Background(), id); err != nil {
				t.Error(err)
			}
		})
		return f
	}
	well := attach("before")
	disk.keep(block('A')[:512])
	written := make(chan error, 1)
	go func() { written <- write(user, block('A')) }()
	wait(t, "the write to reach the disk", disk.kept)
	kill(t, s, "v")
	if err := write(well, block('B')); err != nil {
		t.Errorf("write to a disk that is well: %v", err)
	}
	attach("after")
	kill(t, s, "before")
	waitFor(t, "the volumes on the disk that is well to be recovered", func() bool {
		a, _ := s.table.get("before")
		b, _ := s.table.get("after")
		return a.State == serverv1.Device_LIVE && b.State == serverv1.Device_LIVE && !servedFrom(s, "before").isLost()
	})
	if err := write(well, block('C')); err != nil {
		t.Errorf("write after the recovery: %v", err)
	}
	if d, _ := s.table.get("v"); d.State != serverv1.Device_RECOVERING {
		t.Errorf("with its write under way the volume on the disk that hangs is %s", d.State)
	}
	close(disk.release)
	if err := <-written; err != nil {
		t.Error(err)
	}
	waitFor(t, "the volume of the disk that hung to be live", func() bool { d, _ := s.table.get("v"); return d.State == serverv1.Device_LIVE })
}

// Nobody needs the recovery of a volume that nobody uses: a detach ends it, and the worker
// that was to serve the volume keeps nothing of it.
func TestADetachDuringARecoveryLeavesNothing(t *testing.T) {
	var fenced atomic.Bool
	s := startServer(t, func(s *Server) {
		s.awaitFences = func(ctx context.Context, _ uint64) error {
			if fenced.Load() {
				<-ctx.Done()
			}
			return ctx.Err()
		}
	})
	path := filepath.Join(s.poolsDir, "p", "v")
	if err := os.WriteFile(path, make([]byte, volumeBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := attachSpec{volume: "v", path: path, queues: 1, depth: 16}
	if _, err := s.attach(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	fenced.Store(true)
	kill(t, s, "v")
	awaitArmed(t, s, "v")
	if err := s.detach(t.Context(), "v"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the device to go", func() bool { return s.table.releasingCount() == 0 })
	fenced.Store(false)
	if _, err := s.attach(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := s.detach(t.Context(), "v"); err != nil {
		t.Error(err)
	}
}

// One that is used can't be detached: its recovery goes on where it was.
func TestADetachThatIsRefusedDuringARecoveryLetsItGoOn(t *testing.T) {
	s, disk, user := slowVolume(t, true)
	disk.keep(block('A')[:512])
	written := make(chan error, 1)
	go func() { written <- write(user, block('A')) }()
	wait(t, "the write to reach the disk", disk.kept)
	kill(t, s, "v")
	awaitArmed(t, s, "v")
	if err := s.detach(t.Context(), "v"); !errors.Is(err, errInUse) {
		t.Errorf("detach of a volume that is open: %v", err)
	}
	close(disk.release)
	waitFor(t, "the volume to be live", func() bool { d, _ := s.table.get("v"); return d.State == serverv1.Device_LIVE })
	if err := <-written; err != nil {
		t.Error(err)
	}
}

func awaitArmed(t *testing.T, s *Server, volume string) {
	t.Helper()
	waitFor(t, "another worker to have the device open", func() bool {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		return s.table.volumes[volume].opener.armed
	})
}

func servedFrom(s *Server, volume string) *generation {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.table.volumes[volume].worker
}

// slowVolume is a live volume on a slow disk; its blocks are all written, so
// that a write to it is one write of the disk.
func slowVolume(t *testing.T, fenced bool) (*Server, *slowDisk, *os.File) {
	t.Helper()
	disk := newSlowDisk(t, 400<<20)
	command(t, "mkfs.xfs", "-q", "-K", disk.path)
	s := startServer(t, func(s *Server) {
		if !fenced {
			s.awaitFences = func(context.Context, uint64) error { return nil }
		}
	})
	pool := filepath.Join(s.poolsDir, "p")
	if err := unix.Mount(disk.path, pool, "xfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmountPool(t, pool) })
	path := filepath.Join(pool, "v")
	if err := os.WriteFile(path, make([]byte, volumeBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "sync", "-f", pool)
	d, err := s.attach(t.Context(), attachSpec{volume: "v", path: path, queues: 1, depth: 16})
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.OpenFile(d.Path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		user.Close()
		if err := s.detach(context.Background(), "v"); err != nil {
			t.Error(err)
		}
		waitFor(t, "the device to go", func() bool { return s.table.releasingCount() == 0 })
	})
	return s, disk, user
}

func unmountPool(t *testing.T, pool string) {
	// A dead worker's ring holds its file until the last I/O is over, and with
	// no fence nobody has waited for that.
	err := unix.EBUSY
	for deadline := time.Now().Add(10 * time.Second); err == unix.EBUSY && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		err, _ = unix.Unmount(pool, 0).(unix.Errno)
	}
	if err != 0 {
		t.Errorf("unmount %s: %v", pool, err)
	}
}

func kill(t *testing.T, s *Server, volume string) {
	t.Helper()
	if err := syscall.Kill(servedFrom(s, volume).proc.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func wait(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatalf("waited a minute for %s", what)
	}
}

// block is one block, aligned for direct I/O.
func block(b byte) []byte {
	mem := make([]byte, 8192)
	p := mem[4096-int(uintptr(unsafe.Pointer(&mem[0]))%4096):][:4096]
	copy(p, bytes.Repeat([]byte{b}, 4096))
	return p
}

func write(f *os.File, b []byte) error {
	_, err := f.WriteAt(b, 1<<20)
	return err
}

func read(t *testing.T, f *os.File) []byte {
	t.Helper()
	b := block(0)
	if _, err := f.ReadAt(b, 1<<20); err != nil {
		t.Fatal(err)
	}
	return b
}
