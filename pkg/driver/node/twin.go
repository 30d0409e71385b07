package node

import (
	"context"
	"errors"
	"io/fs"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// separate gives the file system of a volume that is a copy its own UUID, once, before
// it is first mounted: with its source's it could not be mounted beside it. The pool's
// mark goes only when that is done, so a stage that is cut short does it again. It
// does nothing for other volumes.
func (s *Service) separate(ctx context.Context, id string, device client.Device, a access, o deviceOptions) error {
	p, err := s.openPool(o.pool)
	if err != nil {
		return err
	}
	twin, err := p.Twin(id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !twin {
		return nil
	}
	if err != nil {
		return err
	}
	// A source that was never written is formatted below, as any blank device.
	blank, err := s.o.Formats.NeedsFormat(ctx, id, device.Path, a.fsType)
	if err != nil {
		return err
	}
	if !blank {
		if err := s.timed(phaseUUID, func() error { return s.o.Formats.RenewUUID(ctx, o.pool, device.Path, a.fsType) }); err != nil {
			return err
		}
	}
	return p.NotTwin(id)
}
