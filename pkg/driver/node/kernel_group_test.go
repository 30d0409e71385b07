//go:build ublk

package node

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/cut"
)

// TestGroupIsOfOneMoment writes each number to one volume and then to the other, synced:
// at any moment the first is level or one ahead. So must be what was cut together.
func TestGroupIsOfOneMoment(t *testing.T) {
	for name, capability := range map[string]func() *volume{
		"file systems": func() *volume { return newVolume(t, newService(t), mountCapability("ext4"), 256*mib) },
		"raw blocks":   func() *volume { return newVolume(t, newService(t), blockCapability(), 64*mib) },
	} {
		t.Run(name, func(t *testing.T) {
			pair := []*volume{capability(), capability()}
			path := func(v *volume) string {
				if v.cap.GetBlock() != nil {
					return v.target("a")
				}
				return filepath.Join(v.target("a"), "number")
			}
			var files []*os.File
			for _, v := range pair {
				v.must(v.stage(), v.publish("a", false))
				f, err := os.OpenFile(path(v), os.O_RDWR|os.O_CREATE, 0o600)
				v.must(err)
				files = append(files, f)
			}
			stop, done := make(chan struct{}), make(chan error, 1)
			go func() {
				b := make([]byte, 4096)
				for n := uint64(1); ; n++ {
					binary.LittleEndian.PutUint64(b, n)
					for _, f := range files {
						_, err := f.WriteAt(b, 0)
						if err := errors.Join(err, f.Sync()); err != nil {
							done <- err
							return
						}
					}
					select {
					case <-stop:
						done <- nil
						return
					default:
					}
				}
			}()
			freezer, err := mount.NewFreezer(filepath.Join(t.TempDir(), "frozen"), world.devices.GuardFrozen)
			pair[0].must(err)
			cutter := &cut.Cutter{Devices: world.devices, Freezer: freezer}
			var rounds [][]*volume
			for range 5 {
				time.Sleep(100 * time.Millisecond)
				var copies []cut.Copy
				var made []*volume
				for _, v := range pair {
					c := newVolume(t, v.s, v.cap, map[bool]int64{true: 64 * mib, false: 256 * mib}[v.cap.GetBlock() != nil])
					v.must(world.pool.Delete(c.id))
					to, err := world.pool.CopyToVolume(c.id, map[bool]int64{true: 64 * mib, false: 256 * mib}[v.cap.GetBlock() != nil])
					v.must(err)
					defer to.Drop()
					copies, made = append(copies, cut.Copy{Volume: v.id, To: to}), append(made, c)
				}
				at, err := cutter.Volumes(context.Background(), copies...)
				pair[0].must(err, copies[0].To.Finish(), copies[1].To.Finish())
				t.Logf("both held for %v", at.Held)
				rounds = append(rounds, made)
			}
			close(stop)
			pair[0].must(<-done)
			for _, made := range rounds {
				var n [2]uint64
				for i, c := range made {
					c.must(c.stage(), c.publish("a", false))
					f, err := os.Open(path(c))
					c.must(err)
					b := make([]byte, 8)
					_, err = f.ReadAt(b, 0)
					c.must(err, f.Close())
					n[i] = binary.LittleEndian.Uint64(b)
					c.down("a")
				}
				if n[0] == 0 || n[0] != n[1] && n[0] != n[1]+1 {
					t.Errorf("cut together, the first volume has %d and the second %d", n[0], n[1])
				}
			}
			for i, v := range pair {
				v.must(files[i].Close())
				v.down("a")
			}
		})
	}
}
