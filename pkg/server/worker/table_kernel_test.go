//go:build ublk && linux

package worker

import (
	"errors"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// A worker that serves and gets no message must not allocate: what it allocates
// is collected, and a collection shows in the latency of every volume.
func TestServingAllocatesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("/var/tmp", "worker-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file, err := os.OpenFile(dir+"/f", os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(4 << 20); err != nil {
		t.Fatal(err)
	}
	info, err := ublk.ProbeFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		t.Fatal(err)
	}

	c, err := ublk.OpenControl(ublk.ControlOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ring, err := ublk.NewRing(ublk.RingOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer ring.Close()
	counters, err := NewCounters(1)
	if err != nil {
		t.Fatal(err)
	}
	defer counters.Close()
	w := newTable([]*ublk.Ring{ring}, counters)
	do := func(r request) error { return w.do(&r, w.begin(&r)) }

	device, err := c.Add(t.Context(), ublk.DeviceOptions{ID: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetParams(t.Context(), device.ID, info.Params()); err != nil {
		t.Fatal(err)
	}
	attach := request{
		op: opAttach, device: device.ID, queues: device.Queues, depth: device.Depth, maxIOBytes: device.MaxIOBytes,
		features: uint64(device.Features), fileDevice: st.Dev, fileInode: st.Ino, file: info, path: file.Name(),
	}
	// One that is given up while it waits opens nothing: the number may be another's by then.
	for range openers {
		w.openers <- struct{}{}
	}
	waiting := attach
	o, given := w.begin(&waiting), make(chan error, 1)
	go func() { given <- w.do(&waiting, o) }()
	if err := do(request{op: opClose, device: device.ID}); err != nil {
		t.Error(err)
	}
	for range openers {
		<-w.openers
	}
	if err := <-given; !errors.Is(err, unix.ECANCELED) || len(w.openings) != 0 {
		t.Errorf("an attach that was given up: %v, left are %v", err, w.openings)
	}
	if err := do(attach); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context(), device.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	disk, err := unix.Open(device.BlockPath(), unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	mem := make([]byte, 8192)
	p := mem[4096-int(uintptr(unsafe.Pointer(&mem[0]))%4096):][:4096]
	time.Sleep(100 * time.Millisecond) // the set-up's own goroutines end
	if n := testing.AllocsPerRun(200, func() {
		if _, err := unix.Pwrite(disk, p, 8192); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Pread(disk, p, 8192); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a write and a read, want none", n)
	}
	unix.Close(disk)

	if n, err := counters.At(0); err != nil || n.Writes.Load() < 200 || n.WriteBytes.Load() < 200*4096 {
		t.Errorf("shared counters: %d writes, %v", n.Writes.Load(), err)
	}
	// The device must not be closed before every tag has ABORTed, which the server
	// learns from Drain: not as long as the disk is there.
	drained := make(chan error, 1)
	go func() { drained <- do(request{op: opDrain, device: device.ID}) }()
	select {
	case err := <-drained:
		t.Errorf("drained (%v) while all tags are armed", err)
		drained <- nil
	case <-time.After(200 * time.Millisecond):
	}
	if err := do(request{op: opClose, device: device.ID}); !errors.Is(err, ublk.ErrBusy) {
		t.Errorf("close of a device with armed tags: %v, want busy", err)
	}
	if err := c.Stop(t.Context(), device.ID); err != nil {
		t.Error(err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if err := c.DeleteAsync(t.Context(), device.ID); err != nil {
		t.Error(err)
	}
	if err := do(request{op: opClose, device: device.ID}); err != nil {
		t.Error(err)
	}
	if w.load[0] != 0 || len(w.devices) != 0 {
		t.Errorf("after close: load %v, devices %v", w.load, w.devices)
	}
}
