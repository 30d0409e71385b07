package blockdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Size returns the size of the block device at path in bytes.
func Size(path string) (int64, error) {
	f, err := open(path, unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var size uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size))); errno != 0 {
		return 0, fmt.Errorf("size of %s: %w", path, errno)
	}
	return int64(size), nil
}

// ErrInUse says that something holds a device exclusively: a mount, a swap area,
// device mapper, RAID. It matches syscall.EBUSY.
var ErrInUse = fmt.Errorf("the device is mounted or held by another driver: %w", unix.EBUSY)

// CheckUnused returns ErrInUse if something holds the device at path exclusively.
// It takes constant time and raises no uevent: it opens for reading.
func CheckUnused(path string) error {
	f, err := open(path, unix.O_RDONLY|unix.O_EXCL)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%s: %w", path, ErrInUse)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// Verify makes sure that path is the block device with the given numbers, so that
// nothing is done to a device that took another's place.
func Verify(path string, major, minor uint32) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("device %s is not in this mount namespace's /dev; mount the host's /dev there: %w", path, errDevice)
	}
	if err != nil {
		return err
	}
	st := info.Sys().(*statT)
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return fmt.Errorf("%s is no block device: %w", path, errDevice)
	}
	if got := uint64(st.Rdev); got != unix.Mkdev(major, minor) {
		return fmt.Errorf("%s is device %d:%d, not %d:%d as the server says: %w", path, unix.Major(got), unix.Minor(got), major, minor, errDevice)
	}
	return nil
}

// errDevice keeps a missing device node from matching fs.ErrNotExist, which would
// be taken for a missing volume.
var errDevice = errors.New("wrong device node")

// Exists says whether the kernel has a block device with this number now.
func Exists(device uint64) bool {
	_, err := os.Stat(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(device), unix.Minor(device)))
	return err == nil
}

// Path is where the device with this number is in /dev, by the kernel's name of
// it. The error matches fs.ErrNotExist if there is no such device.
func Path(device uint64) (string, error) {
	link, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(device), unix.Minor(device)))
	if err != nil {
		return "", err
	}
	return "/dev/" + filepath.Base(link), nil
}

func open(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) && makeNode(path) == nil {
		return os.OpenFile(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	}
	return f, err
}

// makeNode makes the node of a block device that the kernel has, in a /dev where nodes
// do not appear by themselves: a loop device is often younger than a container's /dev.
func makeNode(path string) error {
	b, err := os.ReadFile(filepath.Join("/sys/class/block", filepath.Base(path), "dev"))
	if err != nil {
		return err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(b), "%d:%d", &major, &minor); err != nil {
		return err
	}
	if filepath.Dir(path) != "/dev" {
		return fmt.Errorf("%s: not in /dev", path)
	}
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor))); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
