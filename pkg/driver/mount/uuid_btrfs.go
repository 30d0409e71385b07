package mount

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// The superblock of Btrfs, struct btrfs_super_block of linux/btrfs_tree.h.
const (
	btrfsSuper   = 64 << 10
	btrfsLogRoot = btrfsSuper + 0x60 // 0 if the log tree is empty
)

// replayBtrfs mounts only where there is a log: beside its source, which has the same
// UUID, the kernel would not mount it. Without the mount, a change by programs would lose
// the log.
func replayBtrfs(ctx context.Context, device string) error {
	dirty, err := btrfsDirty(device)
	if err != nil || !dirty {
		return err
	}
	if err := replay(ctx, device, "btrfs"); err != nil {
		return err
	}
	if dirty, err = btrfsDirty(device); err == nil && dirty {
		err = errors.New("its log is not empty after a mount")
	}
	return err
}

// btrfsDirty says whether there is a log to be replayed.
func btrfsDirty(device string) (bool, error) {
	d, err := os.Open(device)
	if err != nil {
		return false, err
	}
	defer d.Close()
	root := make([]byte, 8)
	if _, err := d.ReadAt(root, btrfsLogRoot); err != nil {
		return false, fmt.Errorf("read superblock of %s: %w", device, err)
	}
	return binary.LittleEndian.Uint64(root) != 0, nil
}
