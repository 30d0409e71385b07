package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a volume's rates; 0 means none. Who serves the volume keeps them; the pool
// only remembers them, for when nobody else can be asked.
type Limits struct {
	IOPS, ReadIOPS, WriteIOPS    uint64 // requests a second
	Bytes, ReadBytes, WriteBytes uint64 // bytes a second
	// Burst is for how long an idle volume saves up its rates; 0 means what is usual
	// where they are kept.
	Burst time.Duration
}

// limitsAttr is part of the volume's file, as the mark of an ephemeral one is.
const limitsAttr = "user.csi-ublk.limits"

// SetLimits remembers the limits of a volume, durably, or forgets them if there are none.
func (p *Pool) SetLimits(id string, l Limits) error {
	f, err := p.openVolume(id)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := writeLimits(f, l); err != nil {
		return fmt.Errorf("limits of volume %s in pool %s: %w", id, p.o.Name, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("limits of volume %s in pool %s: %w", id, p.o.Name, err)
	}
	return nil
}

// Limits returns the limits of a volume, none if none were set. The error matches
// fs.ErrNotExist when there is no such volume.
func (p *Pool) Limits(id string) (Limits, error) {
	f, err := p.openVolume(id)
	if err != nil {
		return Limits{}, err
	}
	defer f.Close()
	l, err := readLimits(f)
	if err != nil {
		return Limits{}, fmt.Errorf("limits of volume %s in pool %s: %w", id, p.o.Name, err)
	}
	return l, nil
}

func writeLimits(f *os.File, l Limits) error {
	if l == (Limits{}) {
		err := unix.Fremovexattr(int(f.Fd()), limitsAttr)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
			return nil
		}
		return err
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return unix.Fsetxattr(int(f.Fd()), limitsAttr, b, 0)
}

// keepLimits gives a file that is to take a volume's place what the volume has.
func (p *Pool) keepLimits(id string, f *os.File) error {
	l, err := p.Limits(id)
	if err != nil || l == (Limits{}) {
		return err
	}
	return writeLimits(f, l)
}

func readLimits(f *os.File) (l Limits, err error) {
	b := make([]byte, 1<<10)
	n, err := unix.Fgetxattr(int(f.Fd()), limitsAttr, b)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return Limits{}, nil
	}
	if err != nil {
		return Limits{}, err
	}
	if err := json.Unmarshal(b[:n], &l); err != nil {
		return Limits{}, fmt.Errorf("attribute %s: %w", limitsAttr, err)
	}
	return l, nil
}
