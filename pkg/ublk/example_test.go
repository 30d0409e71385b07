//go:build linux

package ublk_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// ramDisk answers requests out of memory. It needs no lock: one ring calls it
// from one thread.
type ramDisk []byte

func (d ramDisk) ReadAt(p []byte, off int64) (int, error)  { return copy(p, d[off:]), nil }
func (d ramDisk) WriteAt(p []byte, off int64) (int, error) { return copy(d[off:], p), nil }
func (d ramDisk) Flush() error                             { return nil }
func (d ramDisk) Discard(off, n int64) error               { return d.WriteZeroes(off, n) }
func (d ramDisk) WriteZeroes(off, n int64) error           { clear(d[off : off+n]); return nil }

// Serve a RAM disk of 16 MiB, use it, and take it down again. It needs root and
// the driver.
func Example() {
	if err := serveRAMDisk(context.Background(), useDisk); err != nil {
		fmt.Println(err)
	}
}

// serveRAMDisk takes down in reverse order what it has built up.
func serveRAMDisk(ctx context.Context, use func(path string) error) (err error) {
	undo := func(f func() error) { err = errors.Join(err, f()) }

	control, err := ublk.OpenControl(ublk.ControlOptions{})
	if err != nil {
		return err
	}
	defer undo(control.Close)
	ring, err := ublk.NewRing(ublk.RingOptions{})
	if err != nil {
		return err
	}
	defer undo(ring.Close)

	info, err := control.Add(ctx, ublk.DeviceOptions{ID: -1})
	if err != nil {
		return err
	}
	defer undo(func() error { return control.Delete(ctx, info.ID) })
	disk := make(ramDisk, 16<<20)
	if err := control.SetParams(ctx, info.ID, ublk.Params{Sectors: uint64(len(disk)) / 512}); err != nil {
		return err
	}

	device, err := ublk.OpenDevice(info)
	if err != nil {
		return err
	}
	defer undo(device.Close)
	// One queue: the default.
	if err := device.Serve(0, ring, ublk.FromBackend(disk), nil); err != nil {
		return err
	}
	defer undo(func() error {
		if err := control.Stop(ctx, info.ID); err != nil {
			return err
		}
		<-device.Done()
		return nil
	})
	if err := control.Start(ctx, info.ID, os.Getpid()); err != nil {
		return err
	}
	return use(info.BlockPath())
}

func useDisk(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("hello"), 4096); err != nil {
		return err
	}
	b := make([]byte, 5)
	if _, err := f.ReadAt(b, 4096); err != nil {
		return err
	}
	fmt.Printf("read back: %s\n", b)
	return nil
}
