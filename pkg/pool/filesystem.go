package pool

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/pool/command"
)

// fsLabel marks file systems that were made to be pools. XFS takes 12 bytes.
const fsLabel = "csi-ublk"

// fsTypeOf names the file system of an open file as mount(8) does.
func fsTypeOf(f *os.File) (string, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return "", fmt.Errorf("file system of %s: %w", f.Name(), err)
	}
	switch int64(st.Type) {
	case unix.XFS_SUPER_MAGIC:
		return "xfs", nil
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs", nil
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", nil
	case unix.TMPFS_MAGIC:
		return "tmpfs", nil
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay", nil
	}
	return fmt.Sprintf("%#x", st.Type), nil
}

// probeReflink tries whether a file can be cloned in dir, with two files that
// have no name.
func probeReflink(dir *os.File) (bool, error) {
	var files [2]*os.File
	for i := range files {
		fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return false, fmt.Errorf("try reflink: open unnamed file in %s: %w", dir.Name(), err)
		}
		files[i] = os.NewFile(uintptr(fd), dir.Name())
		defer files[i].Close()
	}
	if _, err := files[0].WriteAt(make([]byte, 4096), 0); err != nil {
		return false, fmt.Errorf("try reflink: %w", err)
	}
	err := unix.IoctlFileClone(int(files[1].Fd()), int(files[0].Fd()))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EXDEV):
		return false, nil
	}
	return false, fmt.Errorf("try reflink: %w", err)
}

// discard says whether mkfs tells the device that its blocks are unused.
type discard bool

const (
	discardBlocks discard = true  // spares an SSD
	keepBlocks    discard = false // would undo the preallocation of an image
)

// format makes a pool's file system on a device or image that is proven blank.
// 4 KiB sectors let one file system work on disks of either sector size.
func format(ctx context.Context, fsType, path string, d discard) error {
	// Force: what is there was looked at more closely than mkfs does.
	name, args := "mkfs.xfs", []string{"-q", "-f", "-L", fsLabel, "-s", "size=4096", "-m", "reflink=1,crc=1"}
	keep := "-K"
	if fsType == "btrfs" {
		name, args = "mkfs.btrfs", []string{"--quiet", "--force", "--label", fsLabel}
		keep = "--nodiscard"
	}
	if d == keepBlocks {
		args = append(args, keep)
	}
	return command.Run(ctx, name, append(args, path)...)
}

// grow makes a mounted file system fill its device. It is no error if it does.
func grow(ctx context.Context, fsType, mountpoint string) error {
	switch fsType {
	case "btrfs":
		return command.Run(ctx, "btrfs", "filesystem", "resize", "max", mountpoint)
	default:
		return command.Run(ctx, "xfs_growfs", "-d", mountpoint)
	}
}
