package pool

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/csi-ublk/csi-ublk/pkg/pool/mountpoint"
	"golang.org/x/sys/unix"
)

// bindPath makes the directory of a path pool visible below the state directory,
// where the device server looks for volumes.
func bindPath(o Options) error {
	from, err := mountpoint.At(o.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("directory %s does not exist, or is not mounted into the node plugin's container: %w", o.Path, err)
	}
	if err != nil {
		return err
	}
	if !from.IsDir() {
		return fmt.Errorf("%s is not a directory: %w", o.Path, ErrInvalid)
	}
	at, err := mountpoint.At(o.root())
	if err != nil {
		return err
	}
	if from.Device == at.Device && from.Inode == at.Inode {
		return nil // bound already, or the administrator made it there
	}
	if at.Mounted {
		return fmt.Errorf("%s is mounted, and not from %s: unmount it, or name the pool differently", o.root(), o.Path)
	}
	if err := unix.Mount(o.Path, o.root(), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", o.Path, o.root(), err)
	}
	return nil
}
