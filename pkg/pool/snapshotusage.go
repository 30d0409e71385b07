package pool

import (
	"fmt"
	"io/fs"
)

// reserveSnapshot takes the bytes of a new snapshot out of what may be promised.
func (p *Pool) reserveSnapshot(id string, bytes int64) error {
	return p.inRoom(func() (more int64, err error) {
		if _, taken := p.cuts[id]; taken {
			return 0, fmt.Errorf("cut snapshot %s in pool %s: it exists: %w", id, p.o.Name, fs.ErrExist)
		}
		return bytes, nil
	}, func() {
		p.countSnapshot(id, Snapshot{AllocatedBytes: bytes})
		p.beginMaking(snapshotKey(id))
	})
}

// recountSnapshot says what a snapshot has become: its volume may have been
// written between the reservation and the cut.
func (p *Pool) recountSnapshot(id string, s Snapshot) error {
	return p.inRoom(func() (more int64, err error) { return s.AllocatedBytes - p.cuts[id].AllocatedBytes, nil },
		func() {
			p.countSnapshot(id, s)
			p.outdate(snapshotKey(id))
		})
}

// inRoom calls count if there is room for more bytes. Both are called with p.mu.
func (p *Pool) inRoom(more func() (int64, error), count func()) error {
	space, err := p.statfs()
	if err != nil {
		return err
	}
	p.mu.Lock()
	bytes, err := more()
	var gone []string
	if err == nil {
		gone, err = p.makeRoom(space, bytes)
	}
	if err == nil {
		count()
	}
	p.mu.Unlock()
	p.unlinkTemplates(gone...)
	return err
}

func (p *Pool) releaseSnapshot(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uncountSnapshot(id)
}

// countSnapshot and uncountSnapshot need p.mu.
func (p *Pool) countSnapshot(id string, s Snapshot) {
	p.cutBytes += s.AllocatedBytes - p.cuts[id].AllocatedBytes
	p.cuts[id] = s
}

func (p *Pool) uncountSnapshot(id string) {
	p.cutBytes -= p.cuts[id].AllocatedBytes
	delete(p.cuts, id)
	p.outdate(snapshotKey(id))
}

// Snapshots returns the snapshots by id, those that are being cut included.
func (p *Pool) Snapshots() map[string]Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]Snapshot, len(p.cuts))
	for id, s := range p.cuts {
		all[id] = s
	}
	return all
}
