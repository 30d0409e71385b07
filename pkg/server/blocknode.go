package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// diskNumber asks sysfs for the number of a started device's disk: GET_PARAMS
// would tell as well, at the price of another control command.
func diskNumber(id uint32) (major, minor uint32, err error) {
	path := fmt.Sprintf("/sys/class/block/ublkb%d/dev", id)
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscanf(string(b), "%d:%d", &major, &minor); err != nil {
		return 0, 0, fmt.Errorf("read %s: %q: %w", path, b, err)
	}
	return major, minor, nil
}

// verifyBlockNode makes sure that path is the block device major:minor, which a
// caller will open, format and mount. devtmpfs makes the node before START_DEV
// returns; a /dev that is no devtmpfs lacks it, and gets it.
func verifyBlockNode(path string, major, minor uint32) error {
	want := unix.Mkdev(major, minor)
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, fs.ErrNotExist) {
		if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(want)); err != nil && !errors.Is(err, fs.ErrExist) {
			return &os.PathError{Op: "mknod", Path: path, Err: err}
		}
		err = unix.Lstat(path, &st)
	}
	if err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != want {
		return fmt.Errorf("%s is not block device %d:%d", path, major, minor)
	}
	return nil
}

// removeBlockNode removes a node that verifyBlockNode made, once its disk is
// gone. On a devtmpfs the kernel has done so already.
func removeBlockNode(path string, major, minor uint32) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == unix.Mkdev(major, minor) {
		// At worst the next device of this number finds its node made.
		_ = os.Remove(path)
	}
}
