package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// NoReflinkError says that the pool's files can't share extents, so that it has
// neither snapshots nor clones. It matches errors.ErrUnsupported.
type NoReflinkError struct{ Pool, FSType string }

func (e *NoReflinkError) Error() string {
	return fmt.Sprintf("pool %s is on %s, which can't share extents between files (reflink): it has no snapshots and no clones; use a pool on xfs or btrfs", e.Pool, e.FSType)
}

func (e *NoReflinkError) Is(target error) bool { return target == errors.ErrUnsupported }

// A Copy is a file on its way to be a snapshot or a volume. It shares its extents
// with what it is a copy of: it is made in no time and takes no space. Its bytes
// count from the beginning. A crash leaves a name that Open removes.
//
// It is filled with Fill, or by the device server at Path; then Finish makes it
// what it is to be. Drop ends it in any case.
type Copy struct {
	p       *Pool
	id      string
	f       *os.File
	interim string // its name in snapshots/
	finish  func() error
	release func() // gives back what it counts with; nil once it is finished
	made    func() // ends what keeps lookers from doing that
}

// interimCopy begins the names of copies, and no id.
const interimCopy = ".copy-"

func (p *Pool) beginCopy(kind, id string, release, made func()) (*Copy, error) {
	c := &Copy{p: p, id: id, interim: interimCopy + kind + "-" + id, release: release, made: made}
	dir := int(p.snapshots.Fd())
	if err := unix.Unlinkat(dir, c.interim, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove what an earlier copy left: %w", err)
	}
	fd, err := unix.Openat(dir, c.interim, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make file for a copy: %w", err)
	}
	c.f = os.NewFile(uintptr(fd), c.interim)
	return c, nil
}

// Path is where the device server finds the file, to clone into it.
func (c *Copy) Path() string { return filepath.Join(c.p.snapshots.Name(), c.interim) }

// SizeBytes is the size of the file, which is its source's once it is filled.
func (c *Copy) SizeBytes() (int64, error) {
	st, err := c.f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// FillFromVolume clones the file of a volume that nobody writes: the device server
// does it for one that is attached.
func (c *Copy) FillFromVolume(id string) error {
	from, err := c.p.openVolume(id)
	if err != nil {
		return err
	}
	return c.fill(from)
}

// FillFromSnapshot clones a snapshot. The error matches fs.ErrNotExist if there is
// none, or none any more.
func (c *Copy) FillFromSnapshot(id string) error {
	from, err := c.p.openSnapshot(id)
	if err != nil {
		return err
	}
	return c.fillFromSnapshot(from)
}

func (c *Copy) fillFromSnapshot(from *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return err
	}
	if err := c.fill(from); err != nil {
		return err
	}
	// What is deleted loses its end, after it has lost its name: the clone may be of what
	// was left.
	return c.p.stillNamed(from.Name(), st)
}

func (c *Copy) fill(from *os.File) error {
	defer from.Close()
	if err := unix.IoctlFileClone(int(c.f.Fd()), int(from.Fd())); err != nil {
		return fmt.Errorf("clone %s: %w", from.Name(), err)
	}
	return nil
}

// Finish makes the file what it is to be, and returns when that is durable. After
// an error it is not, or not for sure; the caller looks again.
func (c *Copy) Finish() error {
	if err := c.finish(); err != nil {
		return err
	}
	c.release = nil
	c.p.changed()
	return nil
}

// place names the file in dir. The name must not be taken.
func (c *Copy) place(dir *os.File, sync *groupSync) error {
	if err := c.f.Sync(); err != nil {
		return fmt.Errorf("sync copy: %w", err)
	}
	if err := unix.Renameat2(int(c.p.snapshots.Fd()), c.interim, int(dir.Fd()), c.id, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("name copy %s: %w", c.id, err)
	}
	if err := sync.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// Drop gives up a copy that was not finished. What was finished stays.
func (c *Copy) Drop() {
	_ = c.f.Close()
	defer c.made()
	if c.release == nil {
		return
	}
	// What can't be removed here is removed when the pool is opened.
	_ = unix.Unlinkat(int(c.p.snapshots.Fd()), c.interim, 0)
	c.release()
	c.release = nil
}
