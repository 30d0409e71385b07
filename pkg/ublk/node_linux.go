package ublk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// makeCharNode makes the node of a character device that the kernel has and whose
// number sysfs tells, in a /dev that is no devtmpfs: a static one, or a container's
// own, where nodes do not appear by themselves. It needs CAP_MKNOD. What is there by
// now is left alone. The error matches fs.ErrNotExist if the kernel has no such device.
func makeCharNode(path, sysfs string) error {
	b, err := os.ReadFile(sysfs)
	if err != nil {
		return err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(b), "%d:%d", &major, &minor); err != nil {
		return fmt.Errorf("read %s: %q: %w", sysfs, b, err)
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor))); err != nil && !errors.Is(err, fs.ErrExist) {
		return &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return nil
}
