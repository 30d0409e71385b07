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

// RenewUUID gives the file system on device, which is not mounted, another UUID. What
// an unclean end has left in its journal is replayed before. It may be repeated after
// any crash.
func (f *Formatter) RenewUUID(ctx context.Context, pool, device, fsType string) error {
	before, err := uuidOf(device, fsType)
	if err != nil {
		return err
	}
	if err := f.renewUUID(ctx, pool, device, fsType); err != nil {
		return fmt.Errorf("give %s on %s another UUID: %w", fsType, device, err)
	}
	// The programs do not always say that they failed.
	after, err := uuidOf(device, fsType)
	if err == nil && after == before {
		err = fmt.Errorf("%s on %s still has the UUID %s", fsType, device, before)
	}
	return err
}

func (f *Formatter) renewUUID(ctx context.Context, pool, device, fsType string) error {
	switch fsType {
	case "btrfs":
		return f.renewBtrfs(ctx, device)
	case "ext4":
		if err := f.Check(ctx, pool, device, fsType); err != nil {
			return err
		}
		// With a seed of their own the checksums do not hang on the UUID: then only
		// superblocks are written, and a crash in between can be repaired.
		return command.Run(ctx, "tune2fs", "-O", "metadata_csum_seed", "-U", "random", device)
	}
	// First without a mount: after a crash in here the log may be of the new UUID,
	// with which the kernel does not mount the old one.
	if generateXFS(ctx, device) == nil {
		return nil
	}
	if err := replay(ctx, device, fsType, "nouuid"); err != nil {
		return err
	}
	return generateXFS(ctx, device)
}

// generateXFS changes the UUID. It fails where the log has something to replay.
func generateXFS(ctx context.Context, device string) error {
	before, err := uuidOf(device, "xfs")
	if err != nil {
		return err
	}
	// What xfs_admin -U does, without its shell. That it could not is no failure to it.
	said, err := command.Output(ctx, "xfs_db", "-x", "-c", "uuid generate", device)
	if err != nil {
		return err
	}
	after, err := uuidOf(device, "xfs")
	if err == nil && after == before {
		err = fmt.Errorf("xfs_db: %s", strings.Join(strings.Fields(said), " "))
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
