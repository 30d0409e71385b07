package pool

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Grow makes a volume's file larger, all holes behind its former end, and returns when
// the size is durable; it may be in use. A file of that size is synced only, since a
// call may have died before that. A file that is larger is left alone and the error
// is a *SizeError; the error is a *FullError when what is to be added does not fit.
func (p *Pool) Grow(id string, sizeBytes int64) error {
	has, err := p.Size(id)
	if err != nil {
		return err
	}
	if has > sizeBytes {
		return &SizeError{ID: id, HasBytes: has, WantedBytes: sizeBytes}
	}
	if has < sizeBytes {
		if err := p.promiseGrowth(id, sizeBytes); err != nil {
			return err
		}
		defer p.endGrowth(id)
	}
	if err := p.growFile(id, sizeBytes); err != nil {
		return fmt.Errorf("grow volume %s in pool %s: %w", id, p.o.Name, err)
	}
	return nil
}

func (p *Pool) growFile(id string, sizeBytes int64) error {
	fd, err := unix.Openat(int(p.volumes.Fd()), id, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), id)
	defer f.Close()
	if err := f.Truncate(sizeBytes); err != nil {
		return fmt.Errorf("set size %d: %w", sizeBytes, err)
	}
	return f.Sync()
}

// promiseGrowth takes what a volume is to have more out of what may be promised.
func (p *Pool) promiseGrowth(id string, sizeBytes int64) error {
	fs, err := p.statfs()
	if err != nil {
		return err
	}
	p.mu.Lock()
	more := sizeBytes - p.sizes[id]
	gone, err := p.makeRoom(fs, more)
	if err == nil {
		if p.growing == nil {
			p.growing = make(map[string]int64)
		}
		p.growing[id] = sizeBytes
		p.setSize(id, sizeBytes)
	}
	p.mu.Unlock()
	p.unlinkTemplates(gone...)
	return err
}

// endGrowth has the file's size count again, whatever became of it.
func (p *Pool) endGrowth(id string) {
	p.mu.Lock()
	delete(p.growing, id)
	p.outdate(id)
	p.mu.Unlock()
	_, _ = p.Size(id)
	p.changed()
}

// setSize makes a volume count with this size, or with the one that it is growing to.
// It needs p.mu.
func (p *Pool) setSize(id string, sizeBytes int64) {
	more := max(sizeBytes, p.growing[id]) - p.sizes[id]
	if _, ok := p.ephemeral[id]; ok {
		p.ephemeralBytes += more
	}
	p.promised += more
	p.sizes[id] += more
}
