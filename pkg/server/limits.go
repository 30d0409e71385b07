package server

import (
	"context"
	"time"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// limitsOf is what a message says. One without a rate says that there are no limits,
// whatever its burst.
func limitsOf(m *serverv1.Limits) ublk.Limits {
	l := ublk.Limits{
		IOPS: m.GetIops(), ReadIOPS: m.GetReadIops(), WriteIOPS: m.GetWriteIops(),
		Bytes: m.GetBytes(), ReadBytes: m.GetReadBytes(), WriteBytes: m.GetWriteBytes(),
	}
	if l != (ublk.Limits{}) {
		l.Burst = time.Duration(m.GetBurstMs()) * time.Millisecond
	}
	return l
}

// limitsMessage is nil for no limits.
func limitsMessage(l ublk.Limits) *serverv1.Limits {
	if l == (ublk.Limits{}) {
		return nil
	}
	return &serverv1.Limits{
		Iops: l.IOPS, ReadIops: l.ReadIOPS, WriteIops: l.WriteIOPS,
		Bytes: l.Bytes, ReadBytes: l.ReadBytes, WriteBytes: l.WriteBytes,
		BurstMs: uint32(l.Burst.Milliseconds()),
	}
}

// setLimitsLimit bounds what takes a message to a worker.
const setLimitsLimit = 10 * time.Second

// setLimits replaces a volume's limits. The journal has them first: a worker that takes
// over, and the next server's, get them with the device.
func (s *Server) setLimits(ctx context.Context, id string, l ublk.Limits) error {
	v, err := s.takeLive(id, opLimit)
	if err != nil {
		return err
	}
	_, err = detached(ctx, s, setLimitsLimit, func(ctx context.Context) (struct{}, error) {
		defer s.end(v, opLimit)
		s.table.update(func() { v.entry.Limits = l })
		if err := s.rejournal(v); err != nil {
			return struct{}{}, err
		}
		// Without its worker the volume is not served before it has another one, which
		// gets these.
		return struct{}{}, ignoreLost(v.worker.proc.SetLimits(ctx, v.info.ID, l))
	})
	return err
}
