//go:build ublk && linux

package kernel

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// ram is a disk in this process's memory.
type ram []byte

func (r ram) ReadAt(p []byte, off int64) (int, error)  { return copy(p, r[off:]), nil }
func (r ram) WriteAt(p []byte, off int64) (int, error) { return copy(r[off:], p), nil }
func (r ram) Flush() error                             { return nil }
func (r ram) Discard(off, n int64) error               { return nil }
func (r ram) WriteZeroes(off, n int64) error           { clear(r[off : off+n]); return nil }

// foreignDisk serves a disk of somebody else, by this process; an id of -1 is any.
func foreignDisk(t *testing.T, id int) (path string, memory ram) {
	t.Helper()
	c, err := ublk.OpenControl(ublk.ControlOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	info, err := c.Add(ctx, ublk.DeviceOptions{ID: id, Depth: 4, Owner: 0x75626c43_00000001})
	if err != nil {
		t.Fatal(err)
	}
	memory = make(ram, 4<<20)
	if err := c.SetParams(ctx, info.ID, ublk.Params{Sectors: uint64(len(memory) / 512)}); err != nil {
		t.Fatal(err)
	}
	ring, err := ublk.NewRing(ublk.RingOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := ublk.OpenDevice(info)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Serve(0, ring, ublk.FromBackend(memory), nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(ctx, info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	return info.BlockPath(), memory
}

// removeForeign takes it down; a cleanup would run after the node's, which wants
// an empty kernel.
func removeForeign(t *testing.T, path string) {
	t.Helper()
	c, err := ublk.OpenControl(ublk.ControlOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var id uint32
	if _, err := fmt.Sscanf(path, "/dev/ublkb%d", &id); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context(), id); err != nil {
		t.Error(err)
	}
	if err := c.DeleteAsync(t.Context(), id); err != nil {
		t.Error(err)
	}
}

func TestDevicesOfOthersAreNeverTouched(t *testing.T) {
	n := newNode(t)
	path, memory := foreignDisk(t, -1)
	copy(memory, "not yours")
	untouched := func(when string) {
		t.Helper()
		if b := readDisk(t, openDisk(t, path), 0, 4096); !bytes.HasPrefix(b, []byte("not yours")) {
			t.Errorf("%s: the foreign disk reads %q", when, b[:16])
		}
	}
	untouched("at the start")
	n.attach("v", 16<<20, client.AttachOptions{})
	n.eventually("both devices to be counted", func() error { // and the probe's no more
		info, err := n.client.Info(n.ctx())
		if err == nil && info.DevicesUsed != 2 {
			err = fmt.Errorf("%d are", info.DevicesUsed)
		}
		return err
	})
	for name, end := range map[string]func(){"killed": n.kill, "stopped": n.stop} {
		end()
		untouched("server " + name)
		n.start()
		n.live("v")
		untouched("server started again")
	}
	if err := n.client.Detach(n.ctx(), "v"); err != nil {
		t.Error(err)
	}
	untouched("after a detach")
	removeForeign(t, path)
}

func TestADeviceOfOursInNoJournalIsDeleted(t *testing.T) {
	n := newNode(t)
	n.attach("kept", 16<<20, client.AttachOptions{})
	lost := n.attach("lost", 16<<20, client.AttachOptions{})
	n.kill()
	if err := os.Remove(n.journal("lost.json")); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.live("kept")
	n.eventually("the orphan to go", func() error {
		if slices.Contains(devices(t), filepath.Base(lost.Path[:len("/dev/ublk")])+"c"+lost.Path[len("/dev/ublkb"):]) {
			return fmt.Errorf("%s is still there", lost.Path)
		}
		return nil
	})
	// The volume is as good as new.
	n.attach("lost", 16<<20, client.AttachOptions{})
}

func TestADamagedJournalEntryStopsNothing(t *testing.T) {
	n := newNode(t)
	n.attach("good", 16<<20, client.AttachOptions{})
	bad := n.attach("bad", 16<<20, client.AttachOptions{})
	inUse := openDisk(t, bad.Path)
	n.kill()
	entry := n.journal("bad.json")
	if err := os.WriteFile(entry, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.live("good")
	// Its device has a user, who must not lose it to a bad file.
	if !slices.Contains(devices(t), fmt.Sprintf("ublkc%d", bad.DeviceID)) {
		t.Error("a device that is open was deleted")
	}
	if _, err := os.Stat(n.journal("damaged/bad.json")); err != nil {
		t.Error(err)
	}
	inUse.Close()
	n.eventually("the device to go once it is closed", func() error {
		if slices.Contains(devices(t), fmt.Sprintf("ublkc%d", bad.DeviceID)) {
			return fmt.Errorf("%s is still there", bad.Path)
		}
		return nil
	})
}

// Somebody deletes a device behind the server's back, and its number gets a new
// user: what the server then does to the volume must not reach that one.
func TestANumberThatWasGivenAwayIsNotUsedAnyMore(t *testing.T) {
	n := newNode(t)
	d := n.attach("v", 16<<20, client.AttachOptions{})
	n.kill()
	n.eventually("the device to be deleted by hand", func() error { return deleteByHand(d.DeviceID) })
	path, memory := foreignDisk(t, int(d.DeviceID))
	if path != d.Path {
		t.Fatalf("the foreign disk is %s, want the number of %s", path, d.Path)
	}
	copy(memory, "not yours")
	n.start()
	if err := n.client.Detach(n.ctx(), "v"); err != nil {
		t.Error(err)
	}
	if b := readDisk(t, openDisk(t, path), 0, 4096); !bytes.HasPrefix(b, []byte("not yours")) {
		t.Errorf("the foreign disk reads %q", b[:16])
	}
	again := n.attach("v", 16<<20, client.AttachOptions{})
	if again.Path == path {
		t.Errorf("the volume has the foreign disk's number")
	}
	removeForeign(t, path)
}

func deleteByHand(id uint32) error {
	c, err := ublk.OpenControl(ublk.ControlOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx := context.Background()
	if err := c.Stop(ctx, id); err != nil {
		return err
	}
	return c.Delete(ctx, id)
}
