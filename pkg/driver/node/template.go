package node

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// cloneTemplate gives a volume that was never written its file system, as a clone
// of its pool's template, and says whether it did: then the volume needs no probe,
// no mkfs and no fsck. The device server must not have the volume. Whatever stands
// in the way is no error, because mkfs on the device remains.
func (s *Service) cloneTemplate(ctx context.Context, id string, a access, o deviceOptions) bool {
	p, err := s.o.Pools.Pool(o.pool)
	if err != nil || a.block || !mount.HasTemplate(a.fsType) || !p.Templates() || s.o.Formats.Interrupted(id) {
		return false
	}
	size, err := p.Size(id)
	if err != nil || tooSmall(size, a.fsType) != nil {
		return false
	}
	if blank, err := p.NeverWritten(id); err != nil || !blank {
		return false
	}
	if err := s.timed(phaseClone, func() error { return clone(ctx, p, s.o.Formats, id, a.fsType) }); err != nil {
		s.fallbacks.Inc()
		slog.WarnContext(ctx, "volume not cloned from a template, mkfs makes its file system", "volume", id, "pool", o.pool, "error", err)
		return false
	}
	return true
}

func clone(ctx context.Context, p *pool.Pool, formats *mount.Formatter, id, fsType string) error {
	t, err := formats.Template(ctx, p.Name(), fsType)
	if err != nil {
		return fmt.Errorf("template for %s: %w", fsType, err)
	}
	return p.Clone(ctx, id, t)
}
