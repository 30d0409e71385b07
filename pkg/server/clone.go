package server

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// errNoSharing: the pool can't clone files.
var errNoSharing = errors.New("the pool's file system can't share extents between files (XFS with reflink and btrfs can)")

// open opens both files of a copy: the one that was attached, and an empty one on the same
// file system.
func (c *cutCopy) open(poolsDir string) error {
	e := &c.volume.entry
	source, from, err := openInPools(poolsDir, e.Path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	c.source = source
	if from.Ino != e.Inode {
		return fmt.Errorf("%s is another file than the one that was attached", e.Path)
	}
	target, to, err := openInPools(poolsDir, c.target, unix.O_WRONLY)
	switch {
	case err != nil:
		return err
	case to.Size != 0:
		err = fmt.Errorf("target %s has %d bytes, it must be empty: %w", c.target, to.Size, errInvalid)
	case to.Dev != from.Dev:
		err = fmt.Errorf("target %s is in another pool than %s: %w", c.target, e.Path, errInvalid)
	default:
		c.copy = target
		return nil
	}
	// It is not ours: it stays as it is.
	target.Close()
	return err
}

// clone shares the extents of the whole file (ioctl_ficlonerange(2)).
func (c *cutCopy) clone() error {
	err := unix.IoctlFileClone(int(c.copy.Fd()), int(c.source.Fd()))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("clone %s: %w: %w", c.source.Name(), errNoSharing, err)
	}
	return &os.PathError{Op: "clone", Path: c.source.Name(), Err: err}
}

// close empties the target of a cut that failed.
func (c *cutCopy) close(failed bool) (err error) {
	if c.source != nil {
		err = c.source.Close()
	}
	if c.copy == nil {
		return err
	}
	if failed {
		err = errors.Join(err, c.copy.Truncate(0))
	}
	return errors.Join(err, c.copy.Close())
}
