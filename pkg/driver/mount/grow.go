package mount

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/pool/mountpoint"
	"golang.org/x/sys/unix"
)

// remainderBytes is how much of a device a file system may leave unused: ext4 and XFS leave
// out a last group that is too small for its own tables.
const remainderBytes = 16 << 20

// Grow makes the file system on device, mounted writable at path, as large as the
// device. It works while the file system is in use, and may be repeated; one that is
// large enough costs a read. The kernel does all of it. The error matches
// errors.ErrUnsupported for a file system that this driver does not make.
//
// resize2fs is not used: it opens the device to write, which kernels may refuse for a
// device that is mounted (CONFIG_BLK_DEV_WRITE_MOUNTED).
func Grow(device, path string) error {
	deviceBytes, err := blockdev.Size(device)
	if err != nil {
		return err
	}
	fs, err := sizeAt(device, path)
	if err != nil {
		return err
	}
	blocks := deviceBytes / fs.block
	if blocks <= fs.blocks {
		return nil
	}
	if err := fs.grow(path, uint64(blocks)); err != nil {
		return fmt.Errorf("grow file system from %d to %d blocks: %w", fs.blocks, blocks, err)
	}
	// Success is seen, not believed.
	if fs, err = sizeAt(device, path); err != nil {
		return err
	}
	if has := fs.blocks * fs.block; deviceBytes-has > remainderBytes {
		return fmt.Errorf("grow file system at %s: it has %d bytes after that, and the device %d", path, has, deviceBytes)
	}
	return nil
}

// fsSize is the size of a mounted file system, with all that it has for itself, which
// statfs leaves out.
type fsSize struct {
	blocks, block int64 // how many of how many bytes
	grow          func(path string, blocks uint64) error
}

func sizeAt(device, path string) (fsSize, error) {
	fsType, err := FSType(path)
	if err != nil {
		return fsSize{}, err
	}
	switch fsType {
	case "ext4":
		return ext4Size(device)
	case "xfs":
		return xfsSize(path)
	case "btrfs":
		return btrfsSize(path)
	}
	return fsSize{}, fmt.Errorf("grow file system %s at %s: %w", fsType, path, errors.ErrUnsupported)
}

// ioctl is one whose argument is in memory.
func ioctl(path, name string, request uintptr, arg unsafe.Pointer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return &fs.PathError{Op: name, Path: path, Err: errno}
	}
	return nil
}

// iow and ior are _IOW and _IOR of asm-generic/ioctl.h.
func iow(kind byte, nr, size uintptr) uintptr { return 1<<30 | size<<16 | uintptr(kind)<<8 | nr }
func ior(kind byte, nr, size uintptr) uintptr { return 2<<30 | size<<16 | uintptr(kind)<<8 | nr }

// ext4Size reads the superblock (struct ext4_super_block of fs/ext4/ext4.h), which the
// kernel keeps in the device's page cache while it is mounted.
func ext4Size(device string) (fsSize, error) {
	f, err := os.Open(device)
	if err != nil {
		return fsSize{}, err
	}
	defer f.Close()
	super := make([]byte, 1024)
	if _, err := f.ReadAt(super, 1024); err != nil {
		return fsSize{}, fmt.Errorf("read superblock of %s: %w", device, err)
	}
	le := binary.LittleEndian
	if le.Uint16(super[0x38:]) != 0xef53 {
		return fsSize{}, fmt.Errorf("%s has no superblock of ext4", device)
	}
	blocks := int64(le.Uint32(super[0x04:]))
	const incompat64bit = 0x80
	if le.Uint32(super[0x60:])&incompat64bit != 0 {
		blocks |= int64(le.Uint32(super[0x150:])) << 32
	}
	return fsSize{blocks, 1024 << le.Uint32(super[0x18:]), ext4Grow}, nil
}

// ext4Grow is EXT4_IOC_RESIZE_FS of uapi/linux/ext4.h.
func ext4Grow(path string, blocks uint64) error {
	return ioctl(path, "EXT4_IOC_RESIZE_FS", iow('f', 16, unsafe.Sizeof(blocks)), unsafe.Pointer(&blocks))
}

// xfsGeometry is struct xfs_fsop_geom_v1 of fs/xfs/libxfs/xfs_fs.h.
type xfsGeometry struct {
	blockSize       uint32
	_               [6]uint32
	inodeMaxPerCent uint32
	dataBlocks      uint64
	_               [9]uint64
}

// xfsGrowth is struct xfs_growfs_data.
type xfsGrowth struct {
	blocks          uint64
	inodeMaxPerCent uint32
	_               uint32
}

var (
	_ [112]byte = [unsafe.Sizeof(xfsGeometry{})]byte{}
	_ [16]byte  = [unsafe.Sizeof(xfsGrowth{})]byte{}
)

// xfsSize asks the file system: what is on its device may be older than its log.
func xfsSize(path string) (fsSize, error) {
	var g xfsGeometry
	if err := ioctl(path, "XFS_IOC_FSGEOMETRY_V1", ior('X', 100, unsafe.Sizeof(g)), unsafe.Pointer(&g)); err != nil {
		return fsSize{}, err
	}
	grow := func(path string, blocks uint64) error {
		d := xfsGrowth{blocks: blocks, inodeMaxPerCent: g.inodeMaxPerCent}
		return ioctl(path, "XFS_IOC_FSGROWFSDATA", iow('X', 110, unsafe.Sizeof(d)), unsafe.Pointer(&d))
	}
	return fsSize{int64(g.dataBlocks), int64(g.blockSize), grow}, nil
}

// btrfsVolArgs is struct btrfs_ioctl_vol_args of uapi/linux/btrfs.h.
type btrfsVolArgs struct {
	_    int64
	name [4088]byte
}

func btrfsSize(path string) (fsSize, error) {
	const sector = 4096
	has, err := mountpoint.BtrfsBytes(path)
	return fsSize{has / sector, sector, btrfsGrow}, err
}

// btrfsGrow is BTRFS_IOC_RESIZE, which takes the new size as text.
func btrfsGrow(path string, _ uint64) error {
	var args btrfsVolArgs
	copy(args.name[:], "max")
	return ioctl(path, "BTRFS_IOC_RESIZE", iow(0x94, 3, unsafe.Sizeof(args)), unsafe.Pointer(&args))
}
