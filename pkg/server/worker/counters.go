package worker

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// Counters are the devices' counters, in memory that the server and all its
// workers share: reading them costs the data path nothing, and they outlive a
// worker. A device has a slot. The zero value has none.
type Counters struct {
	file *os.File
	mem  []byte
}

// NewCounters makes memory for n devices. Pages are used as they are touched.
func NewCounters(n int) (*Counters, error) {
	fd, err := unix.MemfdCreate("csi-ublk-counters", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create counters: %w", err)
	}
	f := os.NewFile(uintptr(fd), "counters")
	if err := f.Truncate(int64(n) * ublk.CountersBytes); err != nil {
		return nil, fmt.Errorf("size counters: %w", err)
	}
	return mapCounters(f)
}

func mapCounters(f *os.File) (*Counters, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat counters: %w", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map counters: %w", err)
	}
	return &Counters{file: f, mem: mem}, nil
}

// Slots returns how many devices there is room for.
func (c *Counters) Slots() int { return len(c.mem) / ublk.CountersBytes }

// At returns the counters of a slot.
func (c *Counters) At(slot uint32) (*ublk.Counters, error) {
	if int(slot) >= c.Slots() {
		return nil, fmt.Errorf("counters slot %d of %d", slot, c.Slots())
	}
	return ublk.CountersAt(c.mem[int(slot)*ublk.CountersBytes:][:ublk.CountersBytes])
}

// Reset zeroes a slot, for its next device. No worker may be using it.
func (c *Counters) Reset(slot uint32) {
	clear(c.mem[int(slot)*ublk.CountersBytes:][:ublk.CountersBytes])
}

// Close unmaps the memory; what At returned must not be used any more.
func (c *Counters) Close() error {
	if err := unix.Munmap(c.mem); err != nil {
		return fmt.Errorf("unmap counters: %w", err)
	}
	return c.file.Close()
}
