package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeStageVolume attaches a volume's device and, unless it is to be a raw block
// volume, mounts its file system at the staging path; a new one comes from the
// pool's template, or mkfs makes it if the device is proven blank.
func (s *Service) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkPath("staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	a, err := parseAccess(r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	o, err := parseContext(r.GetVolumeContext(), inContext)
	if err != nil {
		return nil, err
	}
	err = s.exclusive(ctx, r.GetVolumeId(), "NodeStageVolume", func(ctx context.Context) error {
		return s.stage(ctx, r.GetVolumeId(), r.GetStagingTargetPath(), a, o)
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (s *Service) stage(ctx context.Context, id, staging string, a access, o deviceOptions) (err error) {
	if err := s.checkFile(id, o.pool); err != nil {
		return err
	}
	_, err = s.o.Devices.Get(ctx, id)
	isNew := driver.Code(err) == codes.NotFound
	ready := isNew && s.cloneTemplate(ctx, id, a, o)
	device, err := s.attach(ctx, id, a, o)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		// After an error that it takes for final, kubelet does not unstage. A device that
		// was there may be of a call that died; one that is in use stays.
		if down := s.detach(context.WithoutCancel(ctx), id, 0); isNew {
			err = errors.Join(err, down)
		}
	}()
	if err := blockdev.Verify(device.Path, device.Major, device.Minor); err != nil {
		return err
	}
	if a.block {
		return nil
	}
	if device, err = s.separate(ctx, id, device, a, o); err != nil {
		return err
	}
	mounts, err := s.mountStaging(ctx, o.pool, id, device, staging, a, ready)
	if err != nil {
		return err
	}
	return s.fillStaged(device, staging, a, mounts)
}

// checkFile tells a volume that is not here from a pool that is not ready.
func (s *Service) checkFile(id, poolName string) error {
	if pool.CheckID(id) != nil {
		return fmt.Errorf("no volume of this driver has such an id: %w", fs.ErrNotExist)
	}
	p, err := s.openPool(poolName)
	if err != nil {
		return err
	}
	_, err = p.Size(id)
	return err
}

func (s *Service) openPool(name string) (*pool.Pool, error) {
	p, err := s.o.Pools.Pool(name)
	switch {
	case errors.Is(err, pool.ErrNotReady):
		return nil, status.Error(codes.Unavailable, err.Error())
	case err != nil:
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return p, nil
}

// serverPatience bounds how long an operation waits for a device server that is
// being restarted.
const serverPatience = 90 * time.Second

func (s *Service) attach(ctx context.Context, id string, a access, o deviceOptions) (client.Device, error) {
	p, err := s.o.Pools.Pool(o.pool)
	if err != nil {
		return client.Device{}, err
	}
	limits, err := p.Limits(id)
	if err != nil {
		return client.Device{}, err
	}
	options := client.AttachOptions{
		Path:   p.VolumePath(id),
		Queues: o.queues, QueueDepth: o.queueDepth,
		ReadOnly: a.block && a.readOnly,
		Limits:   client.Limits(limits),
	}
	var device client.Device
	err = s.timed(phaseAttach, func() error {
		return whileUnavailable(ctx, func(ctx context.Context) (err error) {
			device, err = s.o.Devices.Attach(ctx, id, options)
			return err
		})
	})
	if err != nil {
		return client.Device{}, fmt.Errorf("attach: %w", err)
	}
	if device.State == client.Failed {
		return client.Device{}, fmt.Errorf("attach: device %s has failed: %s", device.Path, device.Message)
	}
	return device, nil
}

// whileUnavailable repeats a call to the device server for as long as that is not
// there, or has no answer yet.
func whileUnavailable(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := call(ctx)
		if code := driver.Code(err); code != codes.Unavailable && code != codes.Aborted {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// mountStaging makes sure that the volume's file system is at the staging path, and says
// whether it was this call that put it there. One that is ready is not looked at before.
func (s *Service) mountStaging(ctx context.Context, poolName, id string, device client.Device, staging string, a access, ready bool) (mounts bool, err error) {
	mounted, err := s.staged(device, staging, a)
	if err != nil || mounted {
		return false, err
	}
	if err := os.MkdirAll(staging, 0o750); err != nil {
		return false, fmt.Errorf("make staging path: %w", err)
	}
	err = blockdev.CheckUnused(device.Path)
	switch {
	case errors.Is(err, blockdev.ErrInUse):
		// Staged at another path, as kubelet's layout has changed between
		// versions: the kernel mounts the same file system a second time, and
		// refuses anything else. But a mkfs that was killed may take its time to let go:
		// what is mounted with its mark there would be formatted at the next stage.
		if s.o.Formats.Interrupted(id) {
			return false, status.Errorf(codes.Unavailable, "device %s is held by a mkfs that was cut short; retry", device.Path)
		}
	case err != nil:
		return false, err
	case !ready:
		if err := s.makeReady(ctx, poolName, id, device.Path, a.fsType); err != nil {
			return false, err
		}
	}
	err = s.timed(phaseMount, func() error { return mount.Mount(device.Path, staging, a.fsType, a.flags) })
	return err == nil, err
}

// staged says whether the staging path holds this device's file system. What a
// device that is gone has left there is removed; anything else is an error.
func (s *Service) staged(device client.Device, staging string, a access) (bool, error) {
	at, err := mount.At(staging)
	if err != nil || !at.Mounted {
		return false, err
	}
	number := unix.Mkdev(device.Major, device.Minor)
	switch {
	case at.Corrupt, !blockdev.Exists(at.Device), at.Device == number && blockdev.CheckUnused(device.Path) == nil:
		// The last: a former device had this one's number; nothing mounted holds
		// the one that is there now.
		return false, mount.UnmountStale(staging)
	case at.Device != number:
		return false, fmt.Errorf("staging path %s holds a file system of device %d:%d, not of %s: %w",
			staging, unix.Major(at.Device), unix.Minor(at.Device), device.Path, fs.ErrExist)
	}
	return true, s.sameMount(staging, a)
}

// sameMount refuses a mount that exists and is not the one asked for.
func (s *Service) sameMount(path string, a access) error {
	fsType, err := mount.FSType(path)
	if err != nil {
		return err
	}
	readOnly, err := mount.ReadOnly(path)
	if err != nil {
		return err
	}
	if fsType != a.fsType || readOnly != a.readOnly {
		return fmt.Errorf("%s is mounted as %s, read-only %v; asked for is %s, read-only %v: %w", path, fsType, readOnly, a.fsType, a.readOnly, fs.ErrExist)
	}
	return nil
}

// leastMiB is the smallest volume that mkfs takes, in MiB.
var leastMiB = map[string]int64{"xfs": 300, "btrfs": 128}

func tooSmall(size int64, fsType string) error {
	if least := leastMiB[fsType]; size < least<<20 {
		return fmt.Errorf("a volume of %d bytes is too small for %s, which needs %dMi; use ext4 or a larger volume: %w", size, fsType, least, unix.ERANGE)
	}
	return nil
}

// makeReady formats a blank device and repairs one that is not.
func (s *Service) makeReady(ctx context.Context, poolName, id, device, fsType string) (err error) {
	var format bool
	err = s.timed(phaseProbe, func() (err error) {
		format, err = s.o.Formats.NeedsFormat(ctx, id, device, fsType)
		return err
	})
	if err != nil {
		return err
	}
	if !format {
		return s.timed(phaseFsck, func() error { return s.o.Formats.Check(ctx, poolName, device, fsType) })
	}
	if size, err := blockdev.Size(device); err == nil {
		if err := tooSmall(size, fsType); err != nil {
			return err
		}
	}
	return s.timed(phaseMkfs, func() error { return s.o.Formats.Format(ctx, poolName, id, device, fsType) })
}
