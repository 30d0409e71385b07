package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Snapshot is the copy of a volume as it was at one moment. It never changes.
type Snapshot struct {
	SizeBytes int64
	// AllocatedBytes is the space that the volume took at the cut, which the
	// snapshot counts with.
	AllocatedBytes int64
	Cut
}

// Cut is the moment of a snapshot. It is part of the file, an extended attribute,
// so that whoever finds the file after a crash knows.
type Cut struct {
	At time.Time `json:"at"`
	// Held is for how long the volume's requests were held back.
	Held time.Duration `json:"heldNanos"`
}

const cutAttr = "user.csi-ublk.cut"

// CopyToSnapshot begins a snapshot of a volume, which counts with what the volume
// has allocated now, and with what the copy has when it is finished. The caller
// makes sure that nobody else begins the same one. cut is called by Finish.
//
// The error is a *NoReflinkError or a *FullError, or matches fs.ErrNotExist if there
// is no such volume and fs.ErrExist if the snapshot exists.
func (p *Pool) CopyToSnapshot(id, volume string, cut func() Cut) (*Copy, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	if !p.reflink {
		return nil, &NoReflinkError{p.o.Name, p.fsType}
	}
	st, err := p.stat(volume)
	if err != nil {
		return nil, err
	}
	if err := p.reserveSnapshot(id, allocated(st)); err != nil {
		return nil, err
	}
	release, made := func() { p.releaseSnapshot(id) }, func() { p.endMaking(snapshotKey(id)) }
	c, err := p.beginCopy("snapshot", id, release, made)
	if err != nil {
		release()
		made()
		return nil, fmt.Errorf("cut snapshot %s in pool %s: %w", id, p.o.Name, err)
	}
	c.finish = func() error { return p.finishSnapshot(c, cut()) }
	return c, nil
}

func (p *Pool) finishSnapshot(c *Copy, cut Cut) error {
	mark, err := json.Marshal(cut)
	if err != nil {
		return err
	}
	if err := unix.Fsetxattr(int(c.f.Fd()), cutAttr, mark, 0); err != nil {
		return fmt.Errorf("note the moment of the cut: %w", err)
	}
	if err := c.f.Chmod(0o400); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(c.f.Fd()), &st); err != nil {
		return err
	}
	if err := p.recountSnapshot(c.id, Snapshot{SizeBytes: st.Size, AllocatedBytes: allocated(st), Cut: cut}); err != nil {
		return err
	}
	return c.place(p.snapshots, &p.snapshotsSync)
}

// Snapshot returns a snapshot, looking at its file. The error matches
// fs.ErrNotExist when there is none, in which case it also stops to count, unless it is
// being made.
func (p *Pool) Snapshot(id string) (Snapshot, error) {
	for {
		l := p.beginLook(snapshotKey(id))
		s, err := p.lookAtSnapshot(id)
		current := p.endLook(snapshotKey(id), l, func() {
			switch {
			case errors.Is(err, fs.ErrNotExist) && !p.beingMade(snapshotKey(id)):
				p.uncountSnapshot(id)
			case err == nil:
				p.countSnapshot(id, s)
			}
		})
		if current {
			return s, err
		}
	}
}

func (p *Pool) lookAtSnapshot(id string) (Snapshot, error) {
	f, err := p.openSnapshot(id)
	if err != nil {
		return Snapshot{}, err
	}
	defer f.Close()
	s, err := readSnapshot(f)
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %s in pool %s: %w", id, p.o.Name, err)
	}
	return s, nil
}

// DeleteSnapshot moves a snapshot to the trash and returns when that is durable.
// One that does not exist is deleted already.
func (p *Pool) DeleteSnapshot(id string) error {
	f, err := p.openSnapshot(id)
	if errors.Is(err, fs.ErrNotExist) {
		p.releaseSnapshot(id)
		return p.syncTrashed(&p.snapshotsSync)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	name, err := p.moveToTrash(p.snapshots, id)
	if err != nil {
		return fmt.Errorf("delete snapshot %s in pool %s: %w", id, p.o.Name, err)
	}
	t := trashed{name: name, counted: allocated(st)}
	p.mu.Lock()
	p.uncountSnapshot(id)
	p.reclaiming += t.counted
	p.mu.Unlock()
	if err := p.syncTrashed(&p.snapshotsSync); err != nil {
		return fmt.Errorf("delete snapshot %s in pool %s: %w", id, p.o.Name, err)
	}
	p.reap(t)
	p.changed()
	return nil
}

func (p *Pool) openSnapshot(id string) (*os.File, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(p.snapshots.Fd()), id, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open snapshot %s in pool %s: %w", id, p.o.Name, err)
	}
	return os.NewFile(uintptr(fd), id), nil
}

// stillNamed says whether a snapshot has the name that it was opened by.
func (p *Pool) stillNamed(id string, opened unix.Stat_t) error {
	var st unix.Stat_t
	err := unix.Fstatat(int(p.snapshots.Fd()), id, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && (st.Ino != opened.Ino || st.Dev != opened.Dev) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("snapshot %s in pool %s was deleted: %w", id, p.o.Name, err)
	}
	return nil
}

func readSnapshot(f *os.File) (s Snapshot, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return s, err
	}
	s.SizeBytes, s.AllocatedBytes = st.Size, allocated(st)
	// One without the mark was put there by hand.
	s.At = time.Unix(st.Mtim.Unix())
	b := make([]byte, 256)
	n, err := unix.Fgetxattr(int(f.Fd()), cutAttr, b)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return s, nil
	case err != nil:
		return s, fmt.Errorf("read the moment of the cut: %w", err)
	}
	if err := json.Unmarshal(b[:n], &s.Cut); err != nil {
		return s, fmt.Errorf("read the moment of the cut: %w", err)
	}
	return s, nil
}

// loadSnapshots counts the snapshots and removes the copies that a crash left.
func (p *Pool) loadSnapshots() error {
	var left, names []string
	err := eachFile(p.snapshots, func(name string, _ unix.Stat_t) {
		if CheckID(name) != nil {
			left = append(left, name)
		} else {
			names = append(names, name)
		}
	})
	if err != nil {
		return fmt.Errorf("read snapshots: %w", err)
	}
	for _, name := range left {
		if err := unix.Unlinkat(int(p.snapshots.Fd()), name, 0); err != nil {
			return fmt.Errorf("remove unfinished copy %s: %w", name, err)
		}
	}
	var errs []error
	for _, name := range names {
		if _, err := p.Snapshot(name); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
