package mount

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/csi-ublk/csi-ublk/pkg/pool/command"
)

// The superblock of Btrfs, struct btrfs_super_block of linux/btrfs_tree.h.
const (
	btrfsSuper   = 64 << 10
	btrfsLogRoot = btrfsSuper + 0x60 // 0 if the log tree is empty
)

// renewBtrfs changes the UUID in the superblocks; blocks of metadata keep the old one,
// which the superblock then names as theirs (METADATA_UUID, Linux 5.0).
func (f *Formatter) renewBtrfs(ctx context.Context, device string) error {
	dirty, err := btrfsDirty(device)
	if err != nil {
		return err
	}
	if dirty {
		// A change by other programs would lose the log.
		if err := replay(ctx, device, "btrfs"); err != nil {
			return err
		}
		if dirty, err = btrfsDirty(device); err == nil && dirty {
			err = errors.New("its log is not empty after a mount")
		}
		if err != nil {
			return err
		}
	}
	return command.Run(ctx, "btrfstune", "-f", "-m", device)
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
