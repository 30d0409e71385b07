// Package cut copies volumes as they are at one moment, in use or not, on the node
// that has them.
//
// A file system that is mounted is frozen for the moment, so that the copy has all
// that was written and needs no repair. The device server holds back the requests of
// attached volumes while it clones their files; of others the pool clones the file.
package cut

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// Devices is the device server.
type Devices interface {
	// Get returns NOT_FOUND for a volume that is not attached.
	Get(ctx context.Context, volumeID string) (client.Device, error)
	Cut(ctx context.Context, copies []client.Copy) (held time.Duration, err error)
}

// Freezer freezes file systems; see mount.Freezer.
type Freezer interface {
	WriteBack(ctx context.Context, device uint64) error
	Freeze(ctx context.Context, volumeID string, device uint64) (thaw func() error, err error)
}

// Cutter cuts volumes. Its fields are required.
type Cutter struct {
	Devices Devices
	Freezer Freezer
}

// A Copy is one volume and the file that is to be its copy.
type Copy struct {
	Volume string
	To     *pool.Copy
}

// bound is the longest that a file system may stay frozen. Before, what it has to write is
// waited for, in which its users go on.
const (
	bound          = 10 * time.Second
	writeBackBound = 30 * time.Second
)

// Volumes fills the copies, all at one moment, which it returns. The caller has the
// locks of all the volumes. After an error no copy is of use; its gRPC code is the
// device server's, if it was that.
func (c *Cutter) Volumes(ctx context.Context, copies ...Copy) (at pool.Cut, err error) {
	inUse, err := c.inUse(ctx, copies)
	if err != nil {
		return at, err
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var attached []client.Copy
	for _, o := range copies {
		number, ok := inUse[o.Volume]
		if !ok {
			if err := o.To.FillFromVolume(o.Volume); err != nil {
				return at, err
			}
			continue
		}
		attached = append(attached, client.Copy{VolumeID: o.Volume, TargetPath: o.To.Path()})
		thaw, freezeErr := c.Freezer.Freeze(ctx, o.Volume, number)
		if freezeErr != nil {
			return at, fmt.Errorf("volume %s: %w", o.Volume, freezeErr)
		}
		defer func() {
			if thawErr := thaw(); thawErr != nil {
				err = errors.Join(err, fmt.Errorf("volume %s: %w", o.Volume, thawErr))
			}
		}()
	}
	if len(attached) > 0 {
		if at.Held, err = c.Devices.Cut(ctx, attached); err != nil {
			return at, fmt.Errorf("cut: %w", err)
		}
	}
	at.At = time.Now().Add(-at.Held)
	return at, nil
}

// inUse returns the numbers of the disks of those volumes that have one. What their file
// systems had to write is written, so that none of them is frozen while another one, whose
// disk may be slower, still writes.
func (c *Cutter) inUse(ctx context.Context, copies []Copy) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, writeBackBound)
	defer cancel()
	numbers := make(map[string]uint64)
	var all errgroup.Group
	for _, o := range copies {
		device, err := c.Devices.Get(ctx, o.Volume)
		if driver.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("ask for the device of volume %s: %w", o.Volume, err), all.Wait())
		}
		number := unix.Mkdev(device.Major, device.Minor)
		numbers[o.Volume] = number
		all.Go(func() error {
			if err := c.Freezer.WriteBack(ctx, number); err != nil {
				return fmt.Errorf("volume %s: %w", o.Volume, err)
			}
			return nil
		})
	}
	return numbers, all.Wait()
}
