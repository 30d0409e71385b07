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
		failed, ill := s.sampleVolumes()
		for _, i := range ill {
			s.log.Warn("requests of a volume fail", "volume", i.volume, "device", i.device, "errors", i.errors, "last", i.last.String())
		}
		for _, v := range failed {
			s.log.Error("volume failed", "volume", v.entry.Volume, "device", v.info.ID, "cause", lostFlush)
			// The next server must not serve it as if nothing had happened.
			if err := s.rejournal(v); err != nil {
				s.log.Error("failure not journaled", "volume", v.entry.Volume, "error", err)
			}
		}
	}
}

// tellAgain is how long a volume whose requests go on to fail is not told of again.
const tellAgain = 30 * time.Second

// An illness is a volume whose requests fail.
type illness struct {
	volume string
	device uint32
	errors uint64
	last   ublk.Failure
}

// sampleVolumes returns the volumes that have failed since the last time, and those of
// which requests have.
func (s *Server) sampleVolumes() (failed []*volume, ill []illness) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, v := range s.table.volumes {
		c, err := s.counters.At(v.slot)
		if err != nil {
			continue
		}
		before := v.errors
		v.errors = failures(c)
		if last, any := c.LastFailure(); any && v.errors > before && time.Since(v.told) > tellAgain {
			v.told = time.Now()
			ill = append(ill, illness{v.entry.Volume, v.info.ID, v.errors, last})
		}
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
	return failed, ill
}

func operations(c *ublk.Counters) uint64 {
	return c.Reads.Load() + c.Writes.Load() + c.Flushes.Load() + c.Discards.Load() + c.WriteZeroes.Load()
}

func failures(c *ublk.Counters) uint64 {
	return c.ReadErrors.Load() + c.WriteErrors.Load() + c.FlushErrors.Load() + c.DiscardErrors.Load() + c.WriteZeroesErrors.Load()
}
