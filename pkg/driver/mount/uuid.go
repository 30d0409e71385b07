package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/pool/command"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// uuidAt is where a file system keeps its UUID on the device: s_uuid of ext4's
// superblock, sb_uuid of XFS's, fsid of Btrfs's.
var uuidAt = map[string]int64{"ext4": 1024 + 0x68, "xfs": 0x20, "btrfs": btrfsSuper + 0x20}

// Replay does on a device, which is not mounted, what an unclean end has left in the
// journal, as RenewUUID needs it. It may be repeated after any crash.
func (f *Formatter) Replay(ctx context.Context, pool, device, fsType string) error {
	switch fsType {
	case "ext4":
		return f.Check(ctx, pool, device, fsType)
	case "btrfs":
		return replayBtrfs(ctx, device)
	}
	return replay(ctx, device, fsType, "nouuid")
}

// RenewUUID gives the file system in a regular file another UUID. Its journal must have
// nothing to replay. What is cut short may have left something that no program can read:
// the file has to be a clone that nobody else has.
func RenewUUID(ctx context.Context, path, fsType string) error {
	before, err := uuidOf(path, fsType)
	if err != nil {
		return err
	}
	var said string
	switch fsType {
	case "ext4":
		// With a seed of their own the checksums do not hang on the UUID: then only
		// superblocks are written.
		said, err = command.Output(ctx, "tune2fs", "-O", "metadata_csum_seed", "-U", "random", path)
	case "btrfs":
		// Blocks of metadata keep the old one, which the superblocks then name as theirs
		// (METADATA_UUID, Linux 5.0).
		said, err = command.Output(ctx, "btrfstune", "-f", "-m", path)
	default:
		// What xfs_admin -U does, without its shell.
		said, err = command.Output(ctx, "xfs_db", "-f", "-x", "-c", "uuid generate", path)
	}
	if err != nil {
		return fmt.Errorf("give %s another UUID: %w", fsType, err)
	}
	// The programs do not always say by their exit status that they failed.
	after, err := uuidOf(path, fsType)
	if err == nil && after == before {
		err = fmt.Errorf("%s still has the UUID %s: %s", fsType, before, strings.Join(strings.Fields(said), " "))
	}
	return err
}

// replayPatience is how long the device may still be held by what a process that died has
// left: a program that ends, a mount that is being taken down.
const replayPatience = 10 * time.Second

// replay mounts and unmounts: the kernel alone replays a log. The mount is attached
// nowhere. No other process sees it, and if this one dies it is gone: one at a path would
// stay, and keep the device from ever being staged or detached.
func replay(ctx context.Context, device, fsType string, flags ...string) error {
	ctx, cancel := context.WithTimeout(ctx, replayPatience)
	defer cancel()
	for {
		err := replayOnce(device, fsType, flags...)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func replayOnce(device, fsType string, flags ...string) error {
	fs, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("mount to replay the log: %w", err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetString(fs, "source", device)
	for _, flag := range flags {
		err = errors.Join(err, unix.FsconfigSetFlag(fs, flag))
	}
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return fmt.Errorf("mount to replay the log: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return fmt.Errorf("mount to replay the log: %w", err)
	}
	return unix.Close(mount)
}

func uuidOf(device, fsType string) (id uuid.UUID, err error) {
	at, ok := uuidAt[fsType]
	if !ok {
		return id, fmt.Errorf("UUID of %s: %w", fsType, errors.ErrUnsupported)
	}
	f, err := os.Open(device)
	if err != nil {
		return id, err
	}
	defer f.Close()
	if _, err := io.ReadFull(io.NewSectionReader(f, at, int64(len(id))), id[:]); err != nil {
		return id, fmt.Errorf("read UUID of %s on %s: %w", fsType, device, err)
	}
	return id, nil
}
