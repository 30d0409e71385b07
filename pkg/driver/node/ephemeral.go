package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/limits/onnode"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// An inline ephemeral volume is all that its pod says of it: no object, no claim,
// no scheduler's binding. Publishing it makes file, device and mount;
// unpublishing removes all three (Kubernetes' CSI ephemeral inline volumes). Its
// record is the mark on its file: see pool.Ephemeral, and sweep.go for who is left
// behind.

// localID is the id that the node knows a volume by. Kubelet's ids of inline
// volumes, "csi-" and a SHA-256, are longer than ids may be; all others are their
// own.
func localID(id string) string {
	if pool.CheckID(id) == nil {
		return id
	}
	return driver.VolumeID(id)
}

func (s *Service) publishEphemeral(ctx context.Context, r *csi.NodePublishVolumeRequest, a access) error {
	o, err := parseEphemeral(r.GetVolumeContext())
	if err != nil {
		return err
	}
	if a.block {
		return &driver.InvalidError{Field: "volume_capability", Problem: "is block, and an inline volume is always mounted", Remedy: "use a generic ephemeral volume for a raw block device"}
	}
	id, target := localID(r.GetVolumeId()), r.GetTargetPath()
	return s.exclusive(ctx, id, "NodePublishVolume", func(ctx context.Context) error {
		return s.makeEphemeral(ctx, id, target, a, o)
	})
}

// makeEphemeral is stage and publish in one. On an error all of it is undone:
// kubelet may never ask for its removal then.
func (s *Service) makeEphemeral(ctx context.Context, id, target string, a access, o ephemeralOptions) (err error) {
	p, err := s.openPool(o.pool)
	if err != nil {
		return err
	}
	if published, err := s.publishedEphemeral(ctx, id, target, a); err != nil || published {
		return err
	}
	if err := s.removeFormer(ctx, p, id); err != nil {
		return err
	}
	err = s.timed(phaseCreate, func() error {
		return p.CreateEphemeral(id, o.bytes, pool.Ephemeral{Target: target, BootID: s.bootID})
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.removeEphemeral(context.WithoutCancel(ctx), p, id, 0))
		}
	}()
	if l := onnode.Of(o.limits); l != (pool.Limits{}) {
		if err := p.SetLimits(id, l); err != nil {
			return err
		}
	}
	// A call that is repeated may find it attached.
	_, err = s.o.Devices.Get(ctx, id)
	cloned := driver.Code(err) == codes.NotFound && s.cloneTemplate(ctx, id, a, o.deviceOptions)
	device, err := s.attach(ctx, id, a, o.deviceOptions)
	if err != nil {
		return err
	}
	if err := blockdev.Verify(device.Path, device.Major, device.Minor); err != nil {
		return err
	}
	if !cloned {
		if err := s.makeReady(ctx, p.Name(), id, device.Path, a.fsType); err != nil {
			return err
		}
	}
	if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make target path: %w", err)
	}
	err = s.timed(phaseMount, func() error { return mount.Mount(device.Path, target, a.fsType, a.flags) })
	if err != nil {
		return errors.Join(err, os.Remove(target))
	}
	return nil
}

// publishedEphemeral says whether target holds the volume already, as for a call
// that is repeated. What a device that is gone has left there is removed.
func (s *Service) publishedEphemeral(ctx context.Context, id, target string, a access) (bool, error) {
	at, err := clearStale(target)
	if err != nil || !at.Mounted {
		return false, err
	}
	var device client.Device
	err = whileUnavailable(ctx, func(ctx context.Context) (err error) {
		device, err = s.o.Devices.Get(ctx, id)
		return err
	})
	if err != nil && driver.Code(err) != codes.NotFound {
		return false, err
	}
	if err != nil || at.Device != unix.Mkdev(device.Major, device.Minor) {
		return false, fmt.Errorf("target path %s holds a mount of another volume: %w", target, fs.ErrExist)
	}
	return true, s.sameMount(target, a)
}

// removeFormer removes what the pod had before the machine was booted.
func (s *Service) removeFormer(ctx context.Context, p *pool.Pool, id string) error {
	if mark, ok := p.Ephemeral(id); ok && mark.BootID != s.bootID {
		return s.removeEphemeral(ctx, p, id, 0)
	}
	return nil
}

// unpublishEphemeral ends a volume that was published at target and is no longer
// mounted there; disk is as for detach. It does nothing for a volume that is not ephemeral.
func (s *Service) unpublishEphemeral(ctx context.Context, id, target string, disk uint64) error {
	p, mark := s.ephemeral(id)
	if p == nil || mark.Target != target {
		return nil
	}
	return s.removeEphemeral(ctx, p, id, disk)
}

// ephemeral finds an ephemeral volume in the pools that are open; the others are
// looked at when they are (sweep.go).
func (s *Service) ephemeral(id string) (*pool.Pool, pool.Ephemeral) {
	for _, state := range s.o.Pools.States() {
		if state.Pool == nil {
			continue
		}
		if mark, ok := state.Pool.Ephemeral(id); ok {
			return state.Pool, mark
		}
	}
	return nil, pool.Ephemeral{}
}

// removeEphemeral gives up device and file; disk is as for detach. The caller holds the volume's lock.
func (s *Service) removeEphemeral(ctx context.Context, p *pool.Pool, id string, disk uint64) error {
	if err := s.detach(ctx, id, disk); err != nil {
		return err
	}
	if err := s.o.Formats.Forget(id); err != nil {
		return fmt.Errorf("remove the mark of a mkfs: %w", err)
	}
	return s.timed(phaseReclaim, func() error { return p.Delete(id) })
}
