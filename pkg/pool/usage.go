package pool

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Usage is the space of a pool.
type Usage struct {
	// CapacityBytes is what may be promised to volumes in all: the size less the
	// reserve, the templates and, in a path pool, what others keep on the file
	// system; more than that with Options.Overcommit.
	CapacityBytes int64
	// TemplateBytes is what file-system templates take. It makes way for a volume.
	TemplateBytes int64
	// FreeBytes is the file system's free space.
	FreeBytes int64
	// PromisedBytes is the sum of the full sizes of the volumes, of which
	// EphemeralBytes are those of ephemeral ones.
	PromisedBytes, EphemeralBytes int64
	// SnapshotBytes is what snapshots had allocated when they were cut.
	SnapshotBytes int64
	// ReclaimingBytes is what deleted volumes still take.
	ReclaimingBytes int64
}

// AvailableBytes is the size of the largest volume that the pool takes now.
func (u Usage) AvailableBytes() int64 {
	return max(0, u.CapacityBytes-u.PromisedBytes-u.SnapshotBytes-u.ReclaimingBytes)
}

// Usage returns the pool's space. It takes the same time with any number of
// volumes.
func (p *Pool) Usage() (Usage, error) {
	fs, err := p.statfs()
	if err != nil {
		return Usage{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.usageOf(fs), nil
}

// Has says whether the pool has the volume's file, from memory: it does not wait for the
// disk.
func (p *Pool) Has(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, has := p.sizes[id]
	return has && !p.beingMade(id)
}

// HasSnapshot is Has for a snapshot.
func (p *Pool) HasSnapshot(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, has := p.cuts[id]
	return has && !p.beingMade(snapshotKey(id))
}

// IDs are sets of what a pool has; those of ephemeral volumes, which no object names, are
// not among them.
type IDs struct{ Volumes, Snapshots map[string]struct{} }

// IDs returns what the pool has now, what is being made included.
func (p *Pool) IDs() IDs {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := IDs{make(map[string]struct{}, len(p.sizes)), make(map[string]struct{}, len(p.cuts))}
	for id := range p.sizes {
		if _, ephemeral := p.ephemeral[id]; !ephemeral {
			ids.Volumes[id] = struct{}{}
		}
	}
	for id := range p.cuts {
		ids.Snapshots[id] = struct{}{}
	}
	return ids
}

// BytesOf sums what is promised to those of the volumes, and counted for those of the
// snapshots, that the pool has still.
func (p *Pool) BytesOf(ids IDs) (bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range ids.Volumes {
		bytes += p.sizes[id]
	}
	for id := range ids.Snapshots {
		bytes += p.cuts[id].AllocatedBytes
	}
	return bytes
}

type space struct{ total, free int64 }

func (p *Pool) statfs() (space, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(p.root.Fd()), &st); err != nil {
		return space{}, fmt.Errorf("space of pool %s: %w", p.o.Name, err)
	}
	return space{total: int64(st.Blocks) * st.Frsize, free: int64(st.Bavail) * st.Frsize}, nil
}

// usageOf needs p.mu.
func (p *Pool) usageOf(fs space) Usage {
	size := fs.total
	if p.o.Kind == KindPath && p.o.SizeBytes > 0 {
		size = min(size, p.o.SizeBytes)
	}
	reserve := p.o.ReserveBytes
	if reserve == 0 {
		reserve = size * int64(p.o.ReservePercent) / 100
	}
	capacity := min(size-reserve, fs.total-p.foreign-reserve)
	if p.o.Overcommit > 1 { // 1 is exact, where a float has 53 bits only
		// The conversion of a float that is too large is not defined.
		capacity = int64(min(float64(capacity)*p.o.Overcommit, math.MaxInt64/2))
	}
	return Usage{
		CapacityBytes:   max(0, capacity-p.templates.bytes),
		TemplateBytes:   p.templates.bytes,
		FreeBytes:       fs.free,
		PromisedBytes:   p.promised,
		EphemeralBytes:  p.ephemeralBytes,
		SnapshotBytes:   p.cutBytes,
		ReclaimingBytes: p.reclaiming,
	}
}

// reserve takes the full size of a new volume out of what may be promised. The caller
// calls endMaking once the volume has its file, or release.
func (p *Pool) reserve(id string, sizeBytes int64) error {
	fs, err := p.statfs()
	if err != nil {
		return err
	}
	gone, err := p.reserveIn(fs, id, sizeBytes)
	p.unlinkTemplates(gone...)
	return err
}

func (p *Pool) reserveIn(fs space, id string, sizeBytes int64) (gone []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.sizes[id]; taken {
		return nil, fmt.Errorf("create volume %s in pool %s: another call creates it: %w", id, p.o.Name, unix.EALREADY)
	}
	if gone, err = p.makeRoom(fs, sizeBytes); err != nil {
		return gone, err
	}
	p.sizes[id] = sizeBytes
	p.promised += sizeBytes
	p.beginMaking(id)
	return gone, nil
}

// makeRoom forgets the templates without which bytes more fit, and returns their
// names. Whoever placed the volume may not have seen them yet. The error is a
// *FullError. It needs p.mu.
func (p *Pool) makeRoom(fs space, bytes int64) (gone []string, err error) {
	u := p.usageOf(fs)
	if bytes <= u.AvailableBytes()+u.TemplateBytes {
		for bytes > u.AvailableBytes() && len(p.templates.kept) > 0 {
			gone = append(gone, p.forgetOldest())
			u = p.usageOf(fs)
		}
	}
	if bytes > u.AvailableBytes() {
		return gone, &FullError{Pool: p.o.Name, WantedBytes: bytes, AvailableBytes: u.AvailableBytes(), CapacityBytes: u.CapacityBytes,
			PromisedBytes: u.PromisedBytes, SnapshotBytes: u.SnapshotBytes, ReclaimingBytes: u.ReclaimingBytes}
	}
	return gone, nil
}

func (p *Pool) release(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unpromise(id)
}

// unpromise needs p.mu.
func (p *Pool) unpromise(id string) {
	p.unmark(id)
	p.promised -= p.sizes[id]
	delete(p.sizes, id)
	p.outdate(id)
}

// Measure looks anew at what others keep on the file system of a path pool, which
// takes time in proportion to the number of volumes: call it now and then, not
// per operation. In other pools it does nothing.
func (p *Pool) Measure() error {
	if err := p.measureForeign(); err != nil {
		return fmt.Errorf("measure pool %s: %w", p.o.Name, err)
	}
	return nil
}

func (p *Pool) measureForeign() error {
	if p.o.Kind != KindPath {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(p.root.Fd()), &st); err != nil {
		return err
	}
	used := int64(st.Blocks-st.Bfree) * st.Frsize
	var ours int64
	var shared sharing
	// Files move from the later ones to the earlier: what moves meanwhile may be missed,
	// which promises less for a while, and is never counted twice.
	for _, dir := range []*os.File{p.trash, p.volumes, p.snapshots, p.templates.dir} {
		var names []string
		err := eachFile(dir, func(name string, st unix.Stat_t) {
			ours += allocated(st)
			if p.reflink && st.Blocks > 0 {
				names = append(names, name)
			}
		})
		if err != nil {
			return err
		}
		for _, name := range names {
			// One that has gone away is counted next time.
			if err := shared.add(dir, name); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	ours -= shared.twiceBytes()
	// What was written meanwhile may be among ours and not in used.
	if err := unix.Fstatfs(int(p.root.Fd()), &st); err != nil {
		return err
	}
	used = max(used, int64(st.Blocks-st.Bfree)*st.Frsize)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.foreign = max(0, used-ours)
	return nil
}

func (p *Pool) changed() {
	if p.o.OnChange != nil {
		p.o.OnChange()
	}
}
