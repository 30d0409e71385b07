package pool

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// NoExtentMapError says that the pool's file system can't tell where its files have
// their bytes, so that there is no list of allocated or changed blocks. It matches
// errors.ErrUnsupported.
type NoExtentMapError struct{ Pool, FSType string }

func (e *NoExtentMapError) Error() string {
	return fmt.Sprintf("pool %s is on %s, whose map of extents does not tell which blocks have changed: copy the whole snapshot, or use a pool on xfs or btrfs", e.Pool, e.FSType)
}

func (e *NoExtentMapError) Is(target error) bool { return target == errors.ErrUnsupported }

// Blocks lists the blocks of a snapshot that are allocated, or that differ from those
// of an earlier snapshot. It holds files open until Close.
//
// What it says of two snapshots comes from the maps of extents alone, no data is read.
// It is right because both files never change and every write to a shared extent goes
// elsewhere (copy on write): a block that both snapshots have at the same place was
// never written between them, or one of them would have lost it, and it can't have been
// given back and used anew, since the earlier snapshot has held it all the time. The
// reverse does not hold: bytes that were written and are as they were are listed, too.
type Blocks struct {
	// SizeBytes is the size of the volume when the snapshot was cut.
	SizeBytes int64

	p            *Pool
	base, target *snapshotFile // no base: nothing but zeros
	q            fiemap
}

// snapshotFile is an open snapshot.
type snapshotFile struct {
	f *os.File
	unix.Stat_t
}

// AllocatedBlocks lists what a snapshot has that was written and not discarded. The
// error is a *NoExtentMapError or matches fs.ErrNotExist.
func (p *Pool) AllocatedBlocks(id string) (*Blocks, error) {
	target, err := p.openForBlocks(id)
	if err != nil {
		return nil, err
	}
	return &Blocks{SizeBytes: target.Size, p: p, target: target}, nil
}

// ChangedBlocks lists where the snapshot target may differ from the snapshot base of
// the same volume: what was written or discarded in between. Where the volume was
// larger at the second cut, it is compared with zeros. The error is a
// *NoExtentMapError or matches fs.ErrNotExist.
func (p *Pool) ChangedBlocks(base, target string) (*Blocks, error) {
	b, err := p.AllocatedBlocks(target)
	if err != nil {
		return nil, err
	}
	if b.base, err = p.openForBlocks(base); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (p *Pool) openForBlocks(id string) (*snapshotFile, error) {
	f, err := p.openSnapshot(id)
	if err != nil {
		return nil, err
	}
	s := &snapshotFile{f: f}
	if err := unix.Fstat(int(f.Fd()), &s.Stat_t); err != nil {
		f.Close()
		return nil, fmt.Errorf("stat snapshot %s in pool %s: %w", id, p.o.Name, err)
	}
	// Others map blocks of several disks without saying of which, or do not map at all.
	if p.fsType != "xfs" && p.fsType != "btrfs" {
		f.Close()
		return nil, &NoExtentMapError{p.o.Name, p.fsType}
	}
	return s, nil
}

// Close gives up the files.
func (b *Blocks) Close() {
	b.target.f.Close()
	if b.base != nil {
		b.base.f.Close()
	}
}

// From returns the ranges from a byte on, ascending, with a gap between any two. What is
// returned from a later byte is the same, cut off before it. An error ends it: ctx's, or
// one that matches fs.ErrNotExist when a snapshot was deleted meanwhile; what came before
// it is right. One call at a time.
func (b *Blocks) From(ctx context.Context, from int64) iter.Seq2[Range, error] {
	return func(yield func(Range, error) bool) {
		var next Range // not yielded yet: the next one may continue it
		for at := from; at < b.SizeBytes; {
			ranges, until, err := b.window(at)
			if err = errors.Join(err, ctx.Err()); err != nil {
				yield(Range{}, err)
				return
			}
			for _, r := range ranges {
				if r.Start == next.End {
					next.End = r.End
					continue
				}
				if next.End > next.Start && !yield(next, nil) {
					return
				}
				next = r
			}
			at = until
		}
		if next.End > next.Start {
			yield(next, nil)
		}
	}
}

// settleTries is how often a window is read whose extents move.
const settleTries = 3

// window returns the ranges from a byte on, as far as one read of the maps goes.
func (b *Blocks) window(from int64) (ranges []Range, until int64, err error) {
	var base, again, target []extent
	var baseUntil, targetUntil int64
	for try := 1; ; try++ {
		if base, baseUntil, err = b.extents(b.base, from); err != nil {
			return nil, 0, err
		}
		if target, targetUntil, err = b.extents(b.target, from); err != nil {
			return nil, 0, err
		}
		// A balance or a defragmentation moves extents. Only if the base's are where
		// they were, both were where they are at one moment.
		if again, _, err = b.extents(b.base, from); err != nil {
			return nil, 0, err
		}
		if slices.Equal(base, again) {
			break
		}
		if try == settleTries {
			for i := range target {
				target[i].placed = false // all that has data is listed
			}
			break
		}
	}
	// What is deleted loses its extents, after it has lost its name.
	if err := errors.Join(b.named(b.target), b.named(b.base)); err != nil {
		return nil, 0, err
	}
	until = min(baseUntil, targetUntil, b.SizeBytes)
	if until <= from {
		return nil, 0, fmt.Errorf("read extents of snapshot %s in pool %s: the map does not go on behind byte %d", b.target.f.Name(), b.p.o.Name, from)
	}
	differing(base, target, from, until, func(r Range) { ranges = append(ranges, r) })
	return ranges, until, nil
}

func (b *Blocks) extents(s *snapshotFile, from int64) ([]extent, int64, error) {
	if s == nil {
		return readExtents(nil, nil, 0, 0)
	}
	list, until, err := readExtents(&b.q, s.f, from, s.Size)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.ENOTTY) {
		err = &NoExtentMapError{b.p.o.Name, b.p.fsType}
	}
	return list, until, err
}

// named says whether a snapshot still has its name.
func (b *Blocks) named(s *snapshotFile) error {
	if s == nil {
		return nil
	}
	return b.p.stillNamed(s.f.Name(), s.Stat_t)
}
