package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// Sweep removes the ephemeral volumes of a pool that nobody will ask to have removed:
// those of a former boot, and those whose pod's directory kubelet has removed, as when
// its own directory was made anew. It returns the ids of those it removed; a pool that is
// not open has none. It is meant for the start of the plugin and for now and then: it
// looks at every ephemeral volume.
func (s *Service) Sweep(ctx context.Context, name string) (removed []string, err error) {
	p, err := s.o.Pools.Pool(name)
	if err != nil {
		return nil, nil
	}
	var errs []error
	for id, mark := range p.Ephemerals() {
		if !s.abandoned(mark) {
			continue
		}
		err := s.exclusive(ctx, id, "sweep", func(ctx context.Context) error {
			return s.sweep(ctx, p, id)
		})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, id)
	}
	return removed, errors.Join(errs...)
}

// sweep looks again, under the volume's lock.
func (s *Service) sweep(ctx context.Context, p *pool.Pool, id string) error {
	mark, ok := p.Ephemeral(id)
	if !ok || !s.abandoned(mark) {
		return nil
	}
	return s.removeEphemeral(ctx, p, id, 0)
}

// abandoned says whether nobody will unpublish the volume. Kubelet makes the
// directory that holds the target before it publishes, and removes it only after
// it has unpublished.
func (s *Service) abandoned(mark pool.Ephemeral) bool {
	if mark.BootID != s.bootID {
		return true
	}
	if at, err := mount.At(mark.Target); err != nil || at.Mounted {
		return false
	}
	_, err := os.Lstat(filepath.Dir(mark.Target))
	return errors.Is(err, os.ErrNotExist)
}
