package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/pool/mountpoint"
	"golang.org/x/sys/unix"
)

// mountImage makes the image of an image pool if it does not exist, grows it if
// the configured size has grown, and mounts it over a loop device.
func mountImage(ctx context.Context, o Options) error {
	image, err := openImage(ctx, o)
	if err != nil {
		return err
	}
	defer image.Close()
	device, err := blockdev.AttachLoop(image.Name())
	if err != nil {
		return fmt.Errorf("loop device: %w", err)
	}
	at, err := mountpoint.At(device)
	if err != nil {
		return err
	}
	mounted, err := mountedFrom(o, at.Rdev)
	if err != nil {
		return err
	}
	if !mounted {
		// Discards return the space of deleted volumes to the disk below. With
		// preallocation that space is to stay ours.
		data := "discard"
		if o.Preallocate {
			data = ""
		}
		if err := mountPool(o, device, data); err != nil {
			return err
		}
	}
	if err := checkMark(o); err != nil {
		return err
	}
	// Whatever the image's size was: the last growth may have died half way.
	if err := blockdev.GrowLoop(device); err != nil {
		return err
	}
	return grow(ctx, o.FSType, o.root())
}

// openImage opens the image and gives it its configured size. An image has its
// name only once it is formatted, so one that is found is never formatted.
func openImage(ctx context.Context, o Options) (image *os.File, err error) {
	if err := os.MkdirAll(filepath.Dir(o.imagePath()), 0o700); err != nil {
		return nil, fmt.Errorf("make image directory: %w", err)
	}
	image, err = os.OpenFile(o.imagePath(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeImage(ctx, o); err != nil {
			return nil, fmt.Errorf("make image: %w", err)
		}
		image, err = os.OpenFile(o.imagePath(), os.O_RDWR, 0)
	}
	if err != nil {
		return nil, err
	}
	if err = growImage(image, o); err != nil {
		image.Close()
		return nil, err
	}
	return image, nil
}

func growImage(image *os.File, o Options) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil {
		return err
	}
	missing := o.SizeBytes - st.Size
	if missing < 0 {
		return fmt.Errorf("image %s has %d bytes and the configured size is %d: a pool can grow and not shrink; set size to at least %[2]d: %[4]w", image.Name(), st.Size, o.SizeBytes, ErrInvalid)
	}
	if o.Preallocate { // also one that was not, or not to its end
		missing = max(missing, o.SizeBytes-allocated(st))
	}
	if missing == 0 {
		return nil
	}
	if err := sizeImage(image, o, missing); err != nil {
		return fmt.Errorf("grow image: %w", err)
	}
	return nil
}

// makeImage formats a new image beside its place and moves it there when done.
func makeImage(ctx context.Context, o Options) error {
	temp := o.imagePath() + ".new"
	image, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	defer image.Close()
	if err := sizeImage(image, o, o.SizeBytes); err != nil {
		return err
	}
	if err := format(ctx, o.FSType, temp, keepBlocks); err != nil {
		return err
	}
	if err := image.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if err := os.Rename(temp, o.imagePath()); err != nil {
		return err
	}
	return syncDir(filepath.Dir(temp))
}

// sizeImage gives the image its configured size, if the disk has room for the
// bytes that it has not yet: a sparse image on a disk that runs full fails the
// writes of every volume in it.
func sizeImage(image *os.File, o Options, moreBytes int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(image.Fd()), &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Frsize; free < moreBytes {
		return fmt.Errorf("the disk of %s has %d bytes free and %d are needed; make the pool's size smaller, or the state directory a larger disk: %w", image.Name(), free, moreBytes, unix.ENOSPC)
	}
	if err := image.Truncate(o.SizeBytes); err != nil {
		return err
	}
	if o.Preallocate {
		if err := unix.Fallocate(int(image.Fd()), 0, 0, o.SizeBytes); err != nil {
			return fmt.Errorf("preallocate %d bytes: %w", o.SizeBytes, err)
		}
	}
	return image.Sync()
}
