package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// SizeError says that a volume exists with another size than the one asked for.
// It matches fs.ErrExist.
type SizeError struct {
	ID                    string
	HasBytes, WantedBytes int64
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("volume %s exists with %d bytes, not %d", e.ID, e.HasBytes, e.WantedBytes)
}

func (e *SizeError) Is(target error) bool { return target == fs.ErrExist }

// FullError says that a volume's full size, or what a snapshot has allocated, does
// not fit into what the pool may still promise. It matches syscall.ENOSPC.
type FullError struct {
	Pool                         string
	WantedBytes, AvailableBytes  int64
	CapacityBytes, PromisedBytes int64
	SnapshotBytes                int64
	ReclaimingBytes              int64
}

func (e *FullError) Error() string {
	return fmt.Sprintf("pool %s is full: %d bytes wanted, %d available (capacity %d, promised to volumes %d, in snapshots %d, deleted and not yet free %d)",
		e.Pool, e.WantedBytes, e.AvailableBytes, e.CapacityBytes, e.PromisedBytes, e.SnapshotBytes, e.ReclaimingBytes)
}

func (e *FullError) Is(target error) bool { return target == unix.ENOSPC }

// VolumePath is the absolute path of a volume's file, whether it exists or not.
func (p *Pool) VolumePath(id string) string { return VolumePath(p.o.StateDir, p.o.Name, id) }

// VolumePath is the path of a volume's file in a state directory. The id must
// have passed CheckID.
func VolumePath(stateDir, pool, id string) string {
	return filepath.Join(stateDir, "pools", pool, "volumes", id)
}

// Create makes a volume's file of sizeBytes, all holes, and returns when file and
// name are durable. A volume that exists with that size is left alone; with
// another one the error is a *SizeError. The error is a *FullError when the full
// size does not fit.
func (p *Pool) Create(id string, sizeBytes int64) error {
	if err := checkNew(id, sizeBytes); err != nil {
		return err
	}
	if _, ephemeral := p.Ephemeral(id); ephemeral {
		return fmt.Errorf("create volume %s: an ephemeral volume of that id exists: %w", id, fs.ErrExist)
	}
	has, err := p.Size(id)
	switch {
	case err == nil && has == sizeBytes:
		// Perhaps made by a call that died before its last sync.
		return p.syncVolume(id)
	case err == nil:
		return &SizeError{ID: id, HasBytes: has, WantedBytes: sizeBytes}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := p.reserve(id, sizeBytes); err != nil {
		return err
	}
	defer p.endMaking(id)
	if err := p.createFile(id, sizeBytes, nil); err != nil {
		p.release(id)
		return fmt.Errorf("create volume %s in pool %s: %w", id, p.o.Name, err)
	}
	p.changed()
	return nil
}

func checkNew(id string, sizeBytes int64) error {
	if err := CheckID(id); err != nil {
		return err
	}
	if sizeBytes <= 0 {
		return fmt.Errorf("create volume %s: size %d: %w", id, sizeBytes, ErrInvalid)
	}
	return nil
}

// createFile makes the file without a name, so that a crash leaves none behind,
// and gives it one when it has its size and its mark. Only one without a mark is
// to survive a power cut.
func (p *Pool) createFile(id string, sizeBytes int64, mark *Ephemeral) error {
	f, err := unnamed(p.volumes, id)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(sizeBytes); err != nil {
		return fmt.Errorf("set size %d: %w", sizeBytes, err)
	}
	if mark != nil {
		if err := writeMark(f, mark); err != nil {
			return err
		}
	} else if err := f.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if err := link(f, p.volumes, id); err != nil {
		return err
	}
	if mark != nil {
		return nil
	}
	if err := p.volumesSync.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// unnamed makes a file in dir that goes with its descriptor, unless it is linked.
// name is for errors only.
func unnamed(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open unnamed file: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// link names a file that has no name. The name must not be taken.
func link(f, dir *os.File, name string) error {
	if err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), int(dir.Fd()), name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return fmt.Errorf("name file %s: %w", name, err)
	}
	return nil
}

func (p *Pool) syncVolume(id string) error {
	fd, err := unix.Openat(int(p.volumes.Fd()), id, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open volume %s: %w", id, err)
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("sync volume %s: %w", id, err)
	}
	return p.volumesSync.Sync()
}

// Size returns the full size of a volume, looking at its file and not only at
// the index. The error matches fs.ErrNotExist when there is no file, in which case
// the volume also stops to count, unless it is being made.
func (p *Pool) Size(id string) (int64, error) {
	for {
		l := p.beginLook(id)
		st, err := p.stat(id)
		current := p.endLook(id, l, func() {
			switch {
			case errors.Is(err, fs.ErrNotExist) && !p.beingMade(id):
				p.unpromise(id)
			case err == nil:
				p.setSize(id, st.Size) // also takes in a file that somebody put there
			}
		})
		if current {
			return st.Size, err
		}
	}
}

// AllocatedBytes is the space that a volume's file takes in the pool.
func (p *Pool) AllocatedBytes(id string) (int64, error) {
	st, err := p.stat(id)
	return allocated(st), err
}

func (p *Pool) stat(id string) (st unix.Stat_t, err error) {
	if err := CheckID(id); err != nil {
		return st, err
	}
	if err := unix.Fstatat(int(p.volumes.Fd()), id, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, fmt.Errorf("stat volume %s in pool %s: %w", id, p.o.Name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return st, fmt.Errorf("volume %s in pool %s is no regular file", id, p.o.Name)
	}
	return st, nil
}

// Delete moves a volume's file to the trash and returns when that is durable. The
// space is given back by Reclaim. A volume that does not exist is deleted already.
// The caller makes sure that nobody uses the file.
func (p *Pool) Delete(id string) error {
	st, err := p.stat(id)
	if errors.Is(err, fs.ErrNotExist) {
		p.release(id)
		// The name may be gone by a rename whose sync never came.
		return p.syncDelete(id)
	}
	if err != nil {
		return err
	}
	name, err := p.moveToTrash(p.volumes, id)
	if err != nil {
		return fmt.Errorf("delete volume %s in pool %s: %w", id, p.o.Name, err)
	}
	t := trashed{name: name, counted: allocated(st)}
	p.mu.Lock()
	_, ephemeral := p.ephemeral[id]
	p.unpromise(id)
	p.reclaiming += t.counted
	p.mu.Unlock()
	if !ephemeral {
		// Only then may the reaper have it: a file that a crash brings back to
		// its place must be whole.
		err = p.syncDelete(id)
	}
	if err == nil {
		p.reap(t)
	}
	p.changed()
	return err
}

func (p *Pool) moveToTrash(from *os.File, id string) (name string, err error) {
	for n := 0; ; n++ {
		// Ids come back: the trash may hold an earlier volume of this name.
		name = fmt.Sprintf("%s.%d", id, n)
		err := unix.Renameat2(int(from.Fd()), id, int(p.trash.Fd()), name, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return name, err
		}
	}
}

func (p *Pool) syncDelete(id string) error {
	if err := p.syncTrashed(&p.volumesSync); err != nil {
		return fmt.Errorf("delete volume %s in pool %s: %w", id, p.o.Name, err)
	}
	return nil
}

func (p *Pool) syncTrashed(from *groupSync) error {
	// The new name first: never neither.
	if err := errors.Join(p.trashSync.Sync(), from.Sync()); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}
