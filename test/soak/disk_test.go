//go:build soak && linux

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A disk is a loop device below a device-mapper table that can be changed under its
// users: one that becomes slow, or fails, and is sound again. An even number of spells
// says that it is itself.
type disk struct {
	name, path string
	usual      string // table
	bad        []string
	spells     atomic.Int64
	loop       string
	sectors    string
}

// newDisk makes a disk whose tables are "TARGET DEVICE ARGUMENTS", with LOOP for the
// device, as it is usually and as it is in its spells.
func newDisk(t *testing.T, name string, usual string, bad ...string) *disk {
	t.Helper()
	d := &disk{name: "csi-ublk-" + name, usual: usual, bad: bad, loop: loopDevice(t, 4<<30)}
	d.sectors = run(t, "blockdev", "--getsz", d.loop)
	run(t, "dmsetup", "create", d.name, "--table", d.table(usual))
	t.Cleanup(func() { run(t, "dmsetup", "remove", "--retry", d.name) })
	// By its number: /dev/mapper is udev's, which need not be there.
	d.path = "/dev/dm-" + run(t, "dmsetup", "info", "-c", "--noheadings", "-o", "minor", d.name)
	return d
}

func (d *disk) table(what string) string {
	return "0 " + d.sectors + " " + strings.ReplaceAll(what, "LOOP", d.loop)
}

// become changes the table. What is in flight ends as the old one says.
func (d *disk) become(what string) error {
	for _, args := range [][]string{{"load", d.name, "--table", d.table(what)}, {"suspend", "--nolockfs", "--noflush", d.name}, {"resume", d.name}} {
		if out, err := exec.Command("dmsetup", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("dmsetup %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// spell makes the disk bad for a while.
func (d *disk) spell(ctx context.Context, howLong time.Duration) error {
	d.spells.Add(1)
	err := d.become(d.bad[rand.IntN(len(d.bad))])
	if err == nil {
		select {
		case <-ctx.Done():
		case <-time.After(howLong):
		}
	}
	if back := d.become(d.usual); back != nil {
		return back
	}
	d.spells.Add(1)
	return err
}

// excuses says whether the disk has been bad at any time since spells was read.
func (d *disk) excuses(spells int64) bool { return spells%2 == 1 || d.spells.Load() != spells }

// slowDisk is a disk whose every write takes 20 ms, and much longer at times.
func slowDisk(t *testing.T) *disk {
	t.Helper()
	return newDisk(t, "slow", "delay LOOP 0 0 LOOP 0 20", "delay LOOP 0 200 LOOP 0 1000", "delay LOOP 0 2000 LOOP 0 2000")
}

// failingDisk is a disk whose reads fail at times, and writes at others. Flushes do not:
// after one that fails XFS gives itself up.
func failingDisk(t *testing.T) *disk {
	t.Helper()
	return newDisk(t, "failing", "linear LOOP 0", "flakey LOOP 0 0 3600 1 error_reads", "error")
}

// failingPool makes an XFS whose files' bytes are on the failing disk, and returns where
// it is mounted. All else is on a sound disk, with the failing one for the realtime
// device: a file system that can't read or write its metadata gives itself up, and then
// there is nothing left to look at.
func failingPool(t *testing.T, d *disk, dir string) string {
	t.Helper()
	sound := loopDevice(t, 1<<30)
	run(t, "mkfs.xfs", "-q", "-d", "rtinherit=1", "-r", "rtdev="+d.path, sound)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "-t", "xfs", "-o", "rtdev="+d.path, sound, dir)
	t.Cleanup(func() { run(t, "umount", dir) })
	return dir
}

func loopDevice(t *testing.T, bytes int64) string {
	t.Helper()
	f, err := os.CreateTemp("/var/tmp", "disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(f.Name()) })
	if err := f.Truncate(bytes); err != nil {
		t.Fatal(err)
	}
	f.Close()
	loop := run(t, "losetup", "--find", "--show", f.Name())
	t.Cleanup(func() {
		run(t, "losetup", "-d", loop)
		// Whoever still had it open would keep it.
		if _, err := os.Stat(filepath.Join("/sys/block", filepath.Base(loop), "loop")); err == nil {
			t.Errorf("%s is still bound to its file", loop)
		}
	})
	return loop
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
