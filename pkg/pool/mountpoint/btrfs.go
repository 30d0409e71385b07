package mountpoint

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// btrfsDevInfo is struct btrfs_ioctl_dev_info_args of linux/btrfs.h.
type btrfsDevInfo struct {
	devID      uint64
	uuid       [16]byte
	bytesUsed  uint64
	totalBytes uint64
	fsID       [16]byte
	_          [377]uint64
	path       [1024]byte
}

// iocBtrfsDevInfo is BTRFS_IOC_DEV_INFO, _IOWR(0x94, 30, struct btrfs_ioctl_dev_info_args).
const iocBtrfsDevInfo = 3<<30 | uint(unsafe.Sizeof(btrfsDevInfo{}))<<16 | 0x94<<8 | 30

// isBtrfs says whether path is on a Btrfs.
func isBtrfs(path string) (bool, error) {
	var st unix.Statfs_t
	err := ignoringEINTR(func() error { return unix.Statfs(path, &st) })
	if err != nil {
		return false, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return st.Type == unix.BTRFS_SUPER_MAGIC, nil
}

// btrfsDevice returns the number of the block device of a Btrfs with one device. What stat
// says of it is a number that stands for no device.
func btrfsDevice(path string) (uint64, error) {
	info, err := btrfsInfo(path)
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	device := unix.ByteSliceToString(info.path[:])
	if err := unix.Stat(device, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: device, Err: err}
	}
	return st.Rdev, nil
}

// BtrfsBytes is how much of its one device the Btrfs at path uses.
func BtrfsBytes(path string) (int64, error) {
	info, err := btrfsInfo(path)
	if err != nil {
		return 0, err
	}
	return int64(info.totalBytes), nil
}

func btrfsInfo(path string) (*btrfsDevInfo, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	info := &btrfsDevInfo{devID: 1}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(iocBtrfsDevInfo), uintptr(unsafe.Pointer(info))); errno != 0 {
		return nil, fmt.Errorf("device of the btrfs at %s: %w", path, errno)
	}
	return info, nil
}
