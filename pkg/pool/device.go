package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/pool/mountpoint"
	"golang.org/x/sys/unix"
)

// markName is a file in the root of a device or image pool that names the pool,
// so that two disks of two pools can't be taken for one another.
const markName = ".csi-ublk-pool"

// mountDevice mounts the disk of a device pool, and formats it if it is proven
// blank.
func mountDevice(ctx context.Context, o Options) error {
	device, err := mountpoint.At(resolve(o.Device))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("device %s does not exist on this node: %w", o.Device, err)
	}
	if err != nil {
		return err
	}
	if !device.IsBlock() {
		return fmt.Errorf("%s is not a block device: %w", o.Device, ErrInvalid)
	}
	mounted, err := mountedFrom(o, device.Rdev)
	if err != nil {
		return err
	}
	if mounted {
		return checkMark(o)
	}
	if err := blockdev.CheckUnused(o.Device); err != nil {
		return fmt.Errorf("device %s can't become a pool: %w", o.Device, err)
	}
	content, err := blockdev.Probe(ctx, o.Device)
	if err != nil {
		return err
	}
	switch {
	case content.Blank:
		if err := format(ctx, o.FSType, o.Device, discardBlocks); err != nil {
			return err
		}
	case content.Label != fsLabel || content.Type != o.FSType:
		return fmt.Errorf("device %s is not blank, it holds %s; nothing was changed. If nothing on it is needed, wipe it on the node: wipefs --all %[1]s && dd if=/dev/zero of=%[1]s bs=1M count=4 conv=fsync: %[3]w", o.Device, content, fs.ErrExist)
	}
	if err := mountPool(o, o.Device, ""); err != nil {
		// Not formatted once more by itself: what can't be mounted may be somebody's pool.
		return fmt.Errorf("%w. If this pool has never been open, its formatting was cut short: wipe the device on the node (wipefs --all %s), and it is made anew", err, o.Device)
	}
	return checkMark(o)
}

// resolve follows links such as /dev/disk/by-id/...; a path that can't be
// resolved is left for the caller to fail on.
func resolve(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path
}

// mountedFrom says whether the pool is mounted already. Something else in its
// place is an error.
func mountedFrom(o Options, device uint64) (bool, error) {
	at, err := mountpoint.At(o.root())
	if err != nil {
		return false, err
	}
	if !at.Mounted {
		return false, nil
	}
	if at.Device != device {
		return false, fmt.Errorf("%s is mounted from device %d:%d, not %d:%d: unmount it, or name the pool differently",
			o.root(), unix.Major(at.Device), unix.Minor(at.Device), unix.Major(device), unix.Minor(device))
	}
	return true, nil
}

func mountPool(o Options, device, data string) error {
	const flags = unix.MS_NOATIME | unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOEXEC
	if err := unix.Mount(device, o.root(), o.FSType, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s as %s: %w", device, o.root(), o.FSType, err)
	}
	return nil
}

// checkMark makes sure that the mounted file system is this pool's, and marks a
// new one.
func checkMark(o Options) error {
	path := filepath.Join(o.root(), markName)
	text, err := os.ReadFile(path)
	if err == nil {
		if name := strings.TrimSpace(string(text)); name != o.Name {
			return fmt.Errorf("%s belongs to pool %q: %w", backing(o), name, fs.ErrExist)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read mark: %w", err)
	}
	return writeFileSync(path, o.Name+"\n")
}

func backing(o Options) string {
	if o.Kind == KindDevice {
		return o.Device
	}
	return o.imagePath()
}

// writeFileSync replaces a small file so that a crash leaves the old or the new
// one, whole.
func writeFileSync(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
