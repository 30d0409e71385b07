package server

import (
	"errors"
	"fmt"
	"time"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// adopt takes over what former servers left: it puts every volume that a user
// has into the table, and starts its recovery; the rest is cleaned up in the
// background. It does not wait for either.
func (s *Server) adopt() error {
	o, damaged, err := s.observe()
	if err != nil {
		return err
	}
	for _, d := range damaged {
		s.log.Error("journal entry unusable", "error", d)
		s.metrics.damagedEntries.Inc()
	}
	for _, st := range plan(o) {
		s.carryOut(st)
	}
	s.recoverLost()
	return nil
}

// observe reads the journal and asks the kernel for every device it has.
func (s *Server) observe() (observation, []*DamagedEntryError, error) {
	o := observation{tag: s.owner.tag}
	var damaged []*DamagedEntryError
	var err error
	if o.entries, damaged, err = s.journal.load(); err != nil {
		return o, nil, err
	}
	ids, err := ublk.Devices()
	if err != nil {
		return o, nil, err
	}
	for _, id := range ids {
		info, err := s.kernel.info(id)
		switch {
		case err == nil:
			o.devices = append(o.devices, info)
		case !isGone(err):
			// Without an answer it is not known whose it is: hands off.
			s.log.Error("device does not answer", "device", id, "error", err)
			o.silent = append(o.silent, id)
		}
	}
	return o, damaged, nil
}

func (s *Server) carryOut(st step) {
	log := s.log.With("reason", st.reason)
	if st.entry != nil {
		log = log.With("volume", st.entry.Volume)
	}
	if st.device != nil {
		log = log.With("device", st.device.ID, "state", st.device.State.String())
	}
	switch st.verb {
	case doDrop:
		log.Info("journal entry dropped")
		s.dropEntry(st)
	case doDelete:
		log.Warn("device left behind, deleting it")
		s.deleteLeftover(st)
	case doRecover:
		s.adoptVolume(st)
	case doReport:
		log.Error("device left alone")
		v := s.volumeOf(st)
		v.state, v.message = serverv1.Device_FAILED, st.reason
		s.table.update(func() { s.table.volumes[st.entry.Volume] = v })
	}
}

func (s *Server) volumeOf(st step) *volume {
	v := &volume{entry: *st.entry, info: *st.device, slot: noSlot, state: serverv1.Device_RECOVERING, message: "adopted"}
	if p, err := s.kernel.params(st.device.ID); err == nil {
		v.major, v.minor = p.DiskMajor, p.DiskMinor
	} else {
		s.log.Error("device numbers unknown", "volume", st.entry.Volume, "error", err)
	}
	return v
}

func (s *Server) adoptVolume(st step) {
	v := s.volumeOf(st)
	slot, ok := s.table.takeSlot()
	if ok {
		v.slot = slot
	} else {
		v.state, v.message = serverv1.Device_FAILED, fmt.Sprintf("more volumes were attached than the %d devices allowed now", s.options.MaxDevices)
	}
	if c, err := s.counters.At(v.slot); err == nil && st.entry.Failure != "" {
		// Its flush failed under a former server: it stays failed.
		c.Failed.Store(1)
	}
	s.table.update(func() { s.table.volumes[st.entry.Volume] = v })
}

// deleteLeftover stops and deletes a device that nobody was given. As long as
// somebody has its disk open all the same it stays, and is reported.
func (s *Server) deleteLeftover(st step) {
	r := &release{id: st.device.ID, stopped: true, slot: noSlot, done: make(chan struct{})}
	if st.entry != nil {
		r.volume = st.entry.Volume
	}
	// Whoever looks for the volume finds none: it may be attached again.
	gone := s.table.leftover(st.device.ID)
	s.background.Add(1)
	go func() {
		defer s.background.Done()
		defer gone()
		v := &volume{info: *st.device}
		if p, err := s.kernel.params(v.info.ID); err == nil {
			v.major, v.minor = p.DiskMajor, p.DiskMinor
		}
		s.metrics.leftovers.Inc()
		defer s.metrics.leftovers.Dec()
		for pause := 100 * time.Millisecond; ; pause = min(2*pause, 30*time.Second) {
			err := s.stopUnused(s.stopping, v)
			if err == nil {
				break
			}
			if errors.Is(err, errVanished) {
				s.dropEntry(st)
				return
			}
			if s.stopping.Err() != nil {
				return
			}
			s.log.Error("device left behind can't be stopped", "device", v.info.ID, "error", err, "inUse", errors.Is(err, errInUse))
			if sleep(s.stopping, pause) != nil {
				return
			}
		}
		removeBlockNode(v.info.BlockPath(), v.major, v.minor)
		s.dropEntry(st)
		s.startRelease(r)
	}()
}

func (s *Server) dropEntry(st step) {
	if st.entry == nil {
		return
	}
	if err := s.journal.remove(st.entry.Volume, st.entry.Generation); err != nil {
		s.log.Error("journal entry not removed", "volume", st.entry.Volume, "error", err)
	}
}
