package ublk

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// Released reports whether the kernel has let go of a device's number, which is
// the last thing it does for a device: tags and queues are freed by then. Info
// and sysfs forget a deleted device earlier, while a grace period may still be
// waited for.
//
// It asks by an ADD_DEV that the driver refuses for a zoned device without
// USER_COPY (EINVAL), but only once it has the number (EEXIST): nothing is added.
// It takes the driver's global mutex for a moment.
func (c *Control) Released(ctx context.Context, id uint32) (bool, error) {
	info := sys.DevInfo{Queues: 1, Depth: 1, MaxIOBytes: DefaultMaxIOBytes, DevID: id, Flags: uint64(Zoned), ServerFlags: c.opt.Owner}
	_, err := c.run(ctx, request{op: sys.AddDev, dev: id, in: bytesOf(&info)})
	switch {
	case errors.Is(err, unix.EEXIST):
		return false, nil
	case errors.Is(err, unix.EINVAL):
		return true, nil
	case err == nil:
		return true, errors.Join(
			opError(sys.AddDev.String(), int64(id), fmt.Errorf("this driver takes a zoned device without USER_COPY: %w", errors.ErrUnsupported)),
			c.Delete(context.WithoutCancel(ctx), id))
	}
	return false, opError(sys.AddDev.String(), int64(id), err)
}
