//go:build ublk

package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"golang.org/x/sys/unix"
)

// cutOf copies a volume that is staged, as it is now, without a freeze: the copy is as
// a power cut would leave the volume.
func cutOf(t *testing.T, v *volume) (snapshot string) {
	t.Helper()
	snapshot = v.id + "-cut"
	c, err := world.pool.CopyToSnapshot(snapshot, v.id, func() pool.Cut { return pool.Cut{At: time.Now()} })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Drop()
	if err := errors.Join(c.FillFromVolume(v.id), c.Finish()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := world.pool.DeleteSnapshot(snapshot); err != nil {
			t.Error(err)
		}
	})
	return snapshot
}

func restored(t *testing.T, v *volume, snapshot string, size int64) *volume {
	t.Helper()
	r := newVolume(t, v.s, v.cap, size)
	// In the place of the empty one.
	if err := world.pool.Delete(r.id); err != nil {
		t.Fatal(err)
	}
	c, err := world.pool.CopyToVolume(r.id, size)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Drop()
	if err := errors.Join(c.FillFromSnapshot(snapshot), c.Finish()); err != nil {
		t.Fatal(err)
	}
	return r
}

func fsUUID(t *testing.T, id, fsType string) string {
	t.Helper()
	f, err := os.Open(world.pool.VolumePath(id))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 16)
	if _, err := f.ReadAt(b, map[string]int64{"ext4": 1024 + 0x68, "xfs": 0x20, "btrfs": 64<<10 + 0x20}[fsType]); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", b)
}

// A source that is mounted and dirty, and what was restored from it, are mounted on one
// node at a time.
func TestSourceAndCopiesTogether(t *testing.T) {
	for _, fsType := range mount.FSTypes {
		t.Run(fsType, func(t *testing.T) {
			v := newVolume(t, newService(t), mountCapability(fsType), 512*mib)
			v.must(v.stage(), v.publish("a", false))
			file := filepath.Join(v.target("a"), "file")
			want := bytes.Repeat([]byte("then"), mib)
			v.must(os.WriteFile(file, want, 0o600))
			dir, err := os.Open(v.target("a"))
			v.must(err, unix.Syncfs(int(dir.Fd())), dir.Close())
			// Left in the journal, whose end the copy has to replay.
			for i := range 50 {
				f, err := os.Create(fmt.Sprintf("%s-%d", file, i))
				v.must(err, f.Sync(), f.Close())
			}
			snapshot := cutOf(t, v)
			v.must(os.WriteFile(file, bytes.Repeat([]byte("now!"), mib), 0o600))

			copies := []*volume{restored(t, v, snapshot, 512*mib), restored(t, v, snapshot, 512*mib)}
			uuids := map[string]bool{fsUUID(t, v.id, fsType): true}
			var wg sync.WaitGroup
			for _, c := range copies {
				wg.Go(func() {
					if err := errors.Join(c.stage(), c.publish("a", false)); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for _, c := range copies {
				if got, err := os.ReadFile(filepath.Join(c.target("a"), "file")); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s reads other bytes than at the cut (%v)", c.id, err)
				}
				if _, err := os.Stat(filepath.Join(c.target("a"), "file-49")); err != nil {
					t.Errorf("what was synced before the cut: %v", err)
				}
				c.must(os.WriteFile(filepath.Join(c.target("a"), "more"), want, 0o600))
				uuids[fsUUID(t, c.id, fsType)] = true
			}
			if len(uuids) != 3 {
				t.Errorf("three file systems have the UUIDs %v", uuids)
			}
			for _, c := range copies {
				c.down("a")
				before := fsUUID(t, c.id, fsType)
				c.must(c.stage(), c.publish("a", false))
				if after := fsUUID(t, c.id, fsType); after != before {
					t.Errorf("the UUID changed at the second stage, from %s to %s", before, after)
				}
				c.down("a")
			}
			v.down("a")
		})
	}
}

// A change of the UUID that is cut short, as xfs_db is in the midst of clearing the log,
// leaves the copy as it was; the next stage does it.
func TestRenewingIsAllOrNothing(t *testing.T) {
	for _, fsType := range mount.FSTypes {
		t.Run(fsType, func(t *testing.T) {
			v := newVolume(t, newService(t), mountCapability(fsType), 512*mib)
			v.must(v.stage(), v.publish("a", false), os.WriteFile(filepath.Join(v.target("a"), "file"), []byte("data"), 0o600))
			v.down("a")
			c := restored(t, v, cutOf(t, v), 512*mib)
			c.cap = blockCapability()
			c.must(c.stage())
			c.down()
			cut := errors.New("cut short")
			err := world.pool.Rewrite(c.id, func(path string) error {
				err := mount.RenewUUID(context.Background(), path, fsType)
				// All but the first blocks are gone, as a program leaves them that clears first.
				return errors.Join(err, os.Truncate(path, 1<<20), cut)
			})
			if !errors.Is(err, cut) {
				t.Fatal(err)
			}
			if twin, err := world.pool.Twin(c.id); err != nil || !twin {
				t.Errorf("raw block use, or a change that was cut short, took the mark off (%v)", err)
			}
			c.cap = mountCapability(fsType)
			c.must(c.stage(), c.publish("a", false))
			if got, err := os.ReadFile(filepath.Join(c.target("a"), "file")); err != nil || string(got) != "data" {
				t.Errorf("reads %q, %v", got, err)
			}
			c.down("a")
		})
	}
}

// A device keeps its block size when the volume's file shares extents, of which the
// pool's file system makes more demands: a partition table is in units of it, and an
// ext4 of smaller blocks than that can't be mounted.
func TestBlockSizeStays(t *testing.T) {
	v := newVolume(t, newService(t), blockCapability(), 64*mib)
	blockSize := func(v *volume) string {
		t.Helper()
		v.must(v.stage())
		device, err := world.devices.Get(context.Background(), v.id)
		v.must(err)
		size, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device.Path), "queue/logical_block_size"))
		v.must(err)
		v.down()
		return string(size)
	}
	before := blockSize(v)
	disk, err := os.OpenFile(world.pool.VolumePath(v.id), os.O_WRONLY, 0)
	v.must(err)
	_, err = disk.Write(make([]byte, mib))
	v.must(err, disk.Close())
	snapshot := cutOf(t, v)
	if after := blockSize(v); after != before {
		t.Errorf("logical blocks of the source: %q, before the cut %q", after, before)
	}
	if copied := blockSize(restored(t, v, snapshot, 64*mib)); copied != before {
		t.Errorf("logical blocks of the copy: %q, of the source %q", copied, before)
	}
	// Writes of less than the pool's block to a file that shares.
	v.must(v.stage(), v.publish("a", false))
	f, err := os.OpenFile(v.target("a"), os.O_RDWR|unix.O_DIRECT, 0)
	v.must(err)
	memory, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	v.must(err)
	copy(memory, "five hundred and twelve")
	_, err = f.WriteAt(memory[:512], 1536)
	v.must(err, f.Sync())
	clear(memory)
	_, err = f.ReadAt(memory, 0)
	v.must(err, f.Close())
	if !bytes.HasPrefix(memory[1536:], []byte("five hundred")) {
		t.Errorf("reads %q", memory[1536:1560])
	}
	v.down("a")
}

func TestCopyOfABlankVolumeIsFormatted(t *testing.T) {
	v := newVolume(t, newService(t), mountCapability("ext4"), 64*mib)
	c := restored(t, v, cutOf(t, v), 64*mib)
	c.must(c.stage(), c.publish("a", false))
	if twin, err := world.pool.Twin(c.id); err != nil || twin {
		t.Errorf("still a twin: %v", err)
	}
	c.down("a")
}

// freezeAndHang is what a child of this test does until it is killed.
func freezeAndHang(what string) {
	var marks, id, socket string
	var number uint64
	_, err := fmt.Sscan(what, &marks, &id, &number, &socket)
	var guard mount.Guard
	if err == nil && socket != "none" {
		var c *client.Client
		if c, err = client.Dial(socket); err == nil {
			guard = c.GuardFrozen
		}
	}
	if err == nil {
		var f *mount.Freezer
		if f, err = mount.NewFreezer(marks, guard); err == nil {
			_, err = f.Freeze(context.Background(), id, number)
		}
	}
	fmt.Println(err)
	select {}
}

// dieFrozen has a process freeze a file system and die.
func dieFrozen(t *testing.T, what string) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "FREEZE="+what)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || said != "<nil>\n" {
		t.Errorf("freeze: %q, %v", said, err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
}

// A plugin that dies with a file system frozen leaves a mark, by which the next one
// thaws it.
func TestFrozenFileSystemIsThawedByTheNextPlugin(t *testing.T) {
	for _, fsType := range mount.FSTypes {
		t.Run(fsType, func(t *testing.T) {
			v := newVolume(t, newService(t), mountCapability(fsType), 512*mib)
			v.must(v.stage(), v.publish("a", false))
			device, err := world.devices.Get(context.Background(), v.id)
			v.must(err)
			marks := filepath.Join(t.TempDir(), "frozen")
			freezer := func() *mount.Freezer {
				f, err := mount.NewFreezer(marks, nil)
				v.must(err)
				return f
			}
			file := filepath.Join(v.target("a"), "file")
			write := func() chan error {
				done := make(chan error, 1)
				go func() { done <- os.WriteFile(file, []byte("data"), 0o600) }()
				return done
			}
			blocked := func(done chan error) {
				t.Helper()
				select {
				case err := <-done:
					t.Errorf("a write into a frozen file system ended: %v", err)
				case <-time.After(300 * time.Millisecond):
				}
			}
			number := unix.Mkdev(device.Major, device.Minor)
			thaw, err := freezer().Freeze(context.Background(), v.id, number)
			v.must(err)
			first := write()
			blocked(first)
			v.must(thaw(), thaw(), <-first)

			dieFrozen(t, fmt.Sprintf("%s %s %d none", marks, v.id, number))
			second := write()
			blocked(second)
			v.must(freezer().ThawAll(), <-second, freezer().ThawAll())
			if left, err := os.ReadDir(marks); err != nil || len(left) > 0 {
				t.Errorf("marks left: %v, %v", left, err)
			}
			v.down("a")
			thaw, err = freezer().Freeze(context.Background(), v.id, number)
			v.must(err, thaw()) // nothing is mounted
		})
	}
}

// A freeze that is not waited for any longer is undone when it comes.
func TestFreezeThatComesTooLateIsUndone(t *testing.T) {
	v := newVolume(t, newService(t), mountCapability("ext4"), 64*mib)
	v.must(v.stage(), v.publish("a", false))
	device, err := world.devices.Get(context.Background(), v.id)
	v.must(err)
	marks := filepath.Join(t.TempDir(), "frozen")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The guard is told last, when there is no way back.
	f, err := mount.NewFreezer(marks, func(context.Context, *os.File) (func(), error) {
		cancel()
		return func() {}, nil
	})
	v.must(err)
	number := unix.Mkdev(device.Major, device.Minor)
	if _, err := f.Freeze(ctx, v.id, number); !errors.Is(err, context.Canceled) {
		t.Fatalf("freeze that nobody waits for: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left, err := os.ReadDir(marks)
		v.must(err)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("ten seconds later there are marks: %v", left)
		}
	}
	// One that comes too late for a beginning is none.
	if _, err := f.Freeze(ctx, v.id, number); !errors.Is(err, context.Canceled) {
		t.Errorf("freeze that nobody waits for: %v", err)
	}
	if left, err := os.ReadDir(marks); err != nil || len(left) > 0 {
		t.Errorf("marks %v, %v", left, err)
	}
	v.must(os.WriteFile(filepath.Join(v.target("a"), "file"), []byte("data"), 0o600))
	v.down("a")
}

// With the device server there, no writer waits for the next plugin.
func TestFrozenFileSystemIsThawedByTheServer(t *testing.T) {
	for _, fsType := range mount.FSTypes {
		t.Run(fsType, func(t *testing.T) {
			v := newVolume(t, newService(t), mountCapability(fsType), 512*mib)
			v.must(v.stage(), v.publish("a", false))
			device, err := world.devices.Get(context.Background(), v.id)
			v.must(err)
			marks := filepath.Join(t.TempDir(), "frozen")
			dieFrozen(t, fmt.Sprintf("%s %s %d %s", marks, v.id, unix.Mkdev(device.Major, device.Minor), filepath.Join(world.dir, "server.sock")))
			done := make(chan error, 1)
			go func() { done <- os.WriteFile(filepath.Join(v.target("a"), "file"), []byte("data"), 0o600) }()
			select {
			case err := <-done:
				v.must(err)
			case <-time.After(10 * time.Second):
				t.Error("a write still waits")
			}
			// The next plugin finds the mark, and nothing to thaw.
			f, err := mount.NewFreezer(marks, nil)
			v.must(err, f.ThawAll())
			if t.Failed() {
				v.must(<-done)
			}
			// The process that thaws has the file system open for a moment longer.
			down := func() error { return errors.Join(v.unpublish("a"), v.unstage()) }
			for deadline := time.Now().Add(10 * time.Second); down() != nil && time.Now().Before(deadline); {
				time.Sleep(20 * time.Millisecond)
			}
			v.down("a")
		})
	}
}
