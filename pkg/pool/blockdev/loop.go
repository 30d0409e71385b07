package blockdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

type statT = syscall.Stat_t

// Requests of /dev/loop-control and of loop devices (linux/loop.h) that x/sys has
// no name for.
const (
	loopCtlGetFree    = 0x4C82
	loopSetCapacity   = 0x4C07
	loopSetDirectIO   = 0x4C08
	loopGetStatus64   = 0x4C05
	loopSetBlockSize  = 0x4C09
	loopMaxNameBytes  = 63
	loopAttachRetries = 64
)

// AttachLoop returns the loop device over the image at path: the one that is
// there already, or a new one with direct I/O and without autoclear, so that it
// stays when its last user closes it. Direct I/O is asked for and may be off where
// the image's file system has none.
func AttachLoop(path string) (device string, err error) {
	image, err := os.OpenFile(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer image.Close()
	if device, err = FindLoop(image); err != nil || device != "" {
		return device, err
	}
	control, err := os.OpenFile("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open loop control (is the loop module loaded?): %w", err)
	}
	defer control.Close()
	for range loopAttachRetries {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), loopCtlGetFree, 0)
		if errno != 0 {
			return "", fmt.Errorf("get a free loop device: %w", errno)
		}
		device = "/dev/loop" + strconv.Itoa(int(n))
		err = configureLoop(device, image, path)
		// EBUSY: somebody else took the free one first.
		if !errors.Is(err, unix.EBUSY) {
			return device, err
		}
	}
	return "", fmt.Errorf("attach %s: every free loop device was taken first: %w", path, unix.EBUSY)
}

func configureLoop(device string, image *os.File, path string) error {
	loop, err := open(device, unix.O_RDWR)
	if err != nil {
		return fmt.Errorf("open loop device: %w", err)
	}
	defer loop.Close()
	config := unix.LoopConfig{Fd: uint32(image.Fd())}
	copy(config.Info.File_name[:loopMaxNameBytes], path)
	if err := unix.IoctlLoopConfigure(int(loop.Fd()), &config); err != nil {
		return fmt.Errorf("configure %s over %s: %w", device, path, err)
	}
	// A disk with 4 KiB sectors below takes direct I/O in its own sectors only;
	// pool file systems have 4 KiB sectors for that reason.
	if setLoop(loop, loopSetDirectIO, 1) != nil && setLoop(loop, loopSetBlockSize, 4096) == nil {
		_ = setLoop(loop, loopSetDirectIO, 1)
	}
	return nil
}

// FindLoop returns the loop device whose backing file is image, or "". Files are
// told apart by device and inode number, not by name: names differ between mount
// namespaces.
func FindLoop(image *os.File) (device string, err error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &want); err != nil {
		return "", fmt.Errorf("stat %s: %w", image.Name(), err)
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return "", err
	}
	for _, dir := range bound {
		device := "/dev/" + strings.TrimPrefix(filepath.Dir(dir), "/sys/block/")
		dev, inode, err := loopBacking(device)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
			continue // unbound meanwhile
		}
		if err != nil {
			return "", err
		}
		if inode == want.Ino && dev == want.Dev {
			return device, nil
		}
	}
	return "", nil
}

func loopBacking(device string) (dev, inode uint64, err error) {
	loop, err := open(device, unix.O_RDONLY)
	if err != nil {
		return 0, 0, err
	}
	defer loop.Close()
	var info unix.LoopInfo64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, loop.Fd(), loopGetStatus64, uintptr(unsafe.Pointer(&info))); errno != 0 {
		return 0, 0, fmt.Errorf("status of %s: %w", device, errno)
	}
	return info.Device, info.Inode, nil
}

// GrowLoop tells a loop device that its image has grown.
func GrowLoop(device string) error {
	// For reading: a mounted device can't be opened for writing on kernels that
	// protect mounted file systems (CONFIG_BLK_DEV_WRITE_MOUNTED off).
	loop, err := open(device, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer loop.Close()
	if err := setLoop(loop, loopSetCapacity, 0); err != nil {
		return fmt.Errorf("grow %s: %w", device, err)
	}
	return nil
}

// DetachLoop unbinds a loop device. The kernel does so at once, or when the last
// user closes it.
func DetachLoop(device string) error {
	loop, err := open(device, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer loop.Close()
	if err := setLoop(loop, unix.LOOP_CLR_FD, 0); err != nil {
		return fmt.Errorf("unbind %s: %w", device, err)
	}
	return nil
}

func setLoop(loop *os.File, request, value uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, loop.Fd(), request, value); errno != 0 {
		return errno
	}
	return nil
}
