package server

import (
	"time"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// watchInterval is how often the counters are looked at.
const watchInterval = time.Second

// lostFlush is what a failed flush means for a volume.
const lostFlush = "a flush of the backing file failed: what it should have saved may be lost, so the volume answers EIO until it is detached"

// watchVolumes notes, in the counters that the workers share, which volumes are
// busy, and which have failed.
func (s *Server) watchVolumes() {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.stopping.Done():
			return
		}
		for _, v := range s.sampleVolumes() {
			s.log.Error("volume failed", "volume", v.entry.Volume, "device", v.info.ID, "cause", lostFlush)
			// The next server must not serve it as if nothing had happened.
			if err := s.rejournal(v); err != nil {
				s.log.Error("failure not journaled", "volume", v.entry.Volume, "error", err)
			}
		}
	}
}

// sampleVolumes returns the volumes that have failed since the last time.
func (s *Server) sampleVolumes() (failed []*volume) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, v := range s.table.volumes {
		c, err := s.counters.At(v.slot)
		if err != nil {
			continue
		}
		v.errors = failures(c)
		if v.state != serverv1.Device_LIVE {
			continue
		}
		ops := operations(c)
		v.recentOps, v.lastOps = ops-v.lastOps, ops
		if c.Failed.Load() != 0 {
			v.state, v.message, v.entry.Failure = serverv1.Device_FAILED, lostFlush, lostFlush
			failed = append(failed, v)
		}
	}
	return failed
}

func operations(c *ublk.Counters) uint64 {
	return c.Reads.Load() + c.Writes.Load() + c.Flushes.Load() + c.Discards.Load() + c.WriteZeroes.Load()
}

func failures(c *ublk.Counters) uint64 {
	return c.ReadErrors.Load() + c.WriteErrors.Load() + c.FlushErrors.Load() + c.DiscardErrors.Load() + c.WriteZeroesErrors.Load()
}
