package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/csi-ublk/csi-ublk/pkg/pool/mountpoint"
	"golang.org/x/sys/unix"
	mountutils "k8s.io/mount-utils"
)

// State is what is at a path.
type State struct {
	mountpoint.Point
	Exists bool
	// Corrupt: something is mounted there and answers errors, such as EIO of a
	// device that is gone. Only Mounted is known then.
	Corrupt bool
}

// At says what is at path, in constant time unless the mount is corrupt.
func At(path string) (State, error) {
	p, err := mountpoint.At(path)
	switch {
	case err == nil:
		return State{Point: p, Exists: true}, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return State{}, nil
	case !mountutils.IsCorruptedMnt(err):
		return State{}, err
	}
	listed, err := mountpoint.Listed(path)
	if err != nil {
		return State{}, err
	}
	s := State{Exists: true, Corrupt: listed}
	s.Mounted = listed
	if !listed {
		return s, fmt.Errorf("%s can't be looked at and is no mount", path)
	}
	return s, nil
}

// Mount mounts the file system on device at the directory target.
func Mount(device, target, fsType string, f Flags) error {
	if err := unix.Mount(device, target, fsType, f.set, strings.Join(f.data, ",")); err != nil {
		if errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("mount %s on %s as %s: %w: a mount option that %s does not know, or a damaged file system; the kernel's log says which", device, target, fsType, err, fsType)
		}
		return fmt.Errorf("mount %s on %s as %s: %w", device, target, fsType, err)
	}
	return nil
}

// ReadOnly says whether the mount at path is read-only.
func ReadOnly(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return st.Flags&unix.ST_RDONLY != 0, nil
}

// FSType names the file system at path.
func FSType(path string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "", &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	switch int64(st.Type) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", nil
	case unix.XFS_SUPER_MAGIC:
		return "xfs", nil
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs", nil
	}
	return fmt.Sprintf("%#x", st.Type), nil
}

// maxStacked bounds how many mounts on top of each other Unmount removes: more
// than a retried call leaves, less than a loop.
const maxStacked = 16

// Unmount removes what is mounted at target, all of it, and looks again before it
// says so. It is never forced nor lazy: those report success while the device is
// still in use. Nothing mounted, and no target at all, is success. It blocks until
// the file system is written back.
func Unmount(target string) error {
	for range maxStacked {
		s, err := At(target)
		if err != nil {
			return err
		}
		if !s.Mounted {
			return nil
		}
		if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
	return fmt.Errorf("unmount %s: it is still mounted: %w", target, unix.EBUSY)
}

// UnmountStale removes a mount whose device is gone, lazily if it must: nothing
// can be written back any more, and what holds it must not keep the path.
func UnmountStale(target string) error {
	if err := Unmount(target); err == nil {
		return nil
	}
	for range maxStacked {
		if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		} else if err != nil {
			return fmt.Errorf("detach stale mount %s: %w", target, err)
		}
	}
	return fmt.Errorf("detach stale mount %s: it is still mounted: %w", target, unix.EBUSY)
}
