package mount

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Bind makes what is at source visible at target, a directory or a file that exists and
// no symbolic link. Flags that a bind mount can't have of its own stay the source's.
//
// The mount is complete before anybody can see it (open_tree(2), mount_setattr(2),
// move_mount(2), all older than ublk): whoever is killed in here leaves no writable mount
// where a read-only one was asked for, and none at all unless it was done.
func Bind(source, target string, f Flags) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("bind %s to %s: clone its mount: %w", source, target, err)
	}
	defer unix.Close(tree) // which ends a mount that was not moved
	if set, clr := f.attributes(); set|clr != 0 {
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: set, Attr_clr: clr}); err != nil {
			return fmt.Errorf("bind %s to %s: set its flags: %w", source, target, err)
		}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	return nil
}

// attributes are the flags that a mount can have of its own, as mount_setattr(2) takes
// them: clr first. How access times are kept is one of three, in a field.
func (f Flags) attributes() (set, clr uint64) {
	for ms, attr := range map[uintptr]uint64{
		unix.MS_RDONLY: unix.MOUNT_ATTR_RDONLY, unix.MS_NOSUID: unix.MOUNT_ATTR_NOSUID, unix.MS_NODEV: unix.MOUNT_ATTR_NODEV,
		unix.MS_NOEXEC: unix.MOUNT_ATTR_NOEXEC, unix.MS_NODIRATIME: unix.MOUNT_ATTR_NODIRATIME,
	} {
		if f.set&ms != 0 {
			set |= attr
		}
		if f.clear&ms != 0 {
			clr |= attr
		}
	}
	switch {
	case f.set&unix.MS_NOATIME != 0:
		set, clr = set|unix.MOUNT_ATTR_NOATIME, clr|unix.MOUNT_ATTR__ATIME
	case f.set&unix.MS_STRICTATIME != 0:
		set, clr = set|unix.MOUNT_ATTR_STRICTATIME, clr|unix.MOUNT_ATTR__ATIME
	case f.set&unix.MS_RELATIME != 0, f.clear&unix.MS_NOATIME != 0: // mount(8): atime is the kernel's default
		set, clr = set|unix.MOUNT_ATTR_RELATIME, clr|unix.MOUNT_ATTR__ATIME
	}
	return set, clr
}
