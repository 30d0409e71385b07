// Package mountpoint answers one question in constant time: what is mounted at
// this path? Parsing mountinfo instead costs time in proportion to all mounts of
// the node, which is what a node with a thousand volumes can't pay per call.
package mountpoint

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Point is what a path looks like from the process's mount namespace.
type Point struct {
	Mounted bool   // the path itself is the root of a mount, a bind mount of a file included
	Device  uint64 // the device number of the file system that the path is on; of a mounted Btrfs, its block device's
	Inode   uint64
	Mode    uint32 // S_IFMT and permissions
	Rdev    uint64 // of a device node: what it stands for
}

// IsDir says whether the path is a directory.
func (p Point) IsDir() bool { return p.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsBlock says whether the path is a block device node.
func (p Point) IsBlock() bool { return p.Mode&unix.S_IFMT == unix.S_IFBLK }

// At looks at path; a symbolic link is not followed. The error matches
// fs.ErrNotExist when there is nothing. It does no I/O where the kernel has the
// inode in memory, as it has for the root of a mount.
func At(path string) (Point, error) {
	var st unix.Statx_t
	err := ignoringEINTR(func() error {
		return unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &st)
	})
	if err != nil {
		return Point{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	p := Point{
		Device: unix.Mkdev(st.Dev_major, st.Dev_minor),
		Inode:  st.Ino,
		Mode:   uint32(st.Mode),
		Rdev:   unix.Mkdev(st.Rdev_major, st.Rdev_minor),
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return p, fmt.Errorf("statx %s: the kernel does not report mount roots (it needs Linux 5.8): %w", path, errors.ErrUnsupported)
	}
	p.Mounted = st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	// File systems that are not on one block device have numbers of major 0.
	if !p.Mounted || !p.IsDir() || st.Dev_major != 0 {
		return p, nil
	}
	if btrfs, err := isBtrfs(path); err != nil || !btrfs {
		return p, err
	}
	device, err := btrfsDevice(path)
	switch {
	case err == nil:
		p.Device = device
	case !errors.Is(err, fs.ErrNotExist): // else the device is gone, and its number stands for none
		return p, err
	}
	return p, nil
}

// Listed says whether mountinfo has an entry for path. It is the slow way, for
// mounts that At can't look at because their file system answers errors.
func Listed(path string) (bool, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil {
		return false, fmt.Errorf("read mountinfo: %w", err)
	}
	return len(mounts) > 0, nil
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
