package server

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// detachLimit bounds the part of a detach that its caller waits for.
const detachLimit = 2 * time.Minute

// errInUse marks a disk that somebody has open.
var errInUse = errors.New("the block device is open")

// detach stops the volume's device and returns when its disk is gone. A volume
// that is not attached is detached.
func (s *Server) detach(ctx context.Context, id string) error {
	if !validVolumeID(id) {
		return fmt.Errorf("volume id %q: %w", id, errInvalid)
	}
	v, err := s.table.begin(id, opDetach, false)
	var r *recovery
	if errors.Is(err, errBusy) {
		// A recovery may never end, if the file is gone; a volume that nobody
		// uses need not be recovered.
		if held, rec := s.table.takeOver(id, opDetach); held != nil {
			v, r, err = held, rec, nil
		}
	}
	if v == nil || err != nil {
		return err
	}
	_, err = detached(ctx, s, detachLimit, func(ctx context.Context) (*serverv1.Device, error) {
		defer s.end(v, opDetach)
		if r != nil {
			r.stop()
		}
		if err := s.takeDown(ctx, v); err != nil {
			return nil, fmt.Errorf("detach volume %s: %w", id, err)
		}
		s.log.Info("volume detached", "volume", id, "device", v.info.ID)
		return nil, nil
	})
	return err
}

// takeDown is the way down as far as the caller waits for it.
func (s *Server) takeDown(ctx context.Context, v *volume) error {
	phase := s.metrics.phases(opDetach)
	if v.vanished {
		s.forget(v)
		return nil
	}
	before := v.state
	s.table.update(func() { v.state = serverv1.Device_DETACHING })
	switch err := s.stopUnused(ctx, v); {
	case errors.Is(err, errVanished):
		s.forget(v)
		return nil
	case err != nil:
		s.table.update(func() { v.state = before })
		return err
	}
	phase("stop")
	// An entry that stayed would claim whatever device gets the number next: the
	// volume is detached when it is gone, or the caller has to try again.
	if err := s.journal.remove(v.entry.Volume, v.entry.Generation); err != nil {
		return err
	}
	phase("journal")
	s.release(v, true)
	s.table.drop(v)
	return nil
}

// forget drops a volume whose device is gone, without a word to the kernel.
func (s *Server) forget(v *volume) {
	if err := s.journal.remove(v.entry.Volume, v.entry.Generation); err != nil {
		s.log.Error("journal entry not removed", "volume", v.entry.Volume, "error", err)
	}
	s.table.drop(v)
	r := &release{id: v.info.ID, workers: v.holders()}
	s.background.Go(func() {
		if err := errors.Join(r.drain(s.stopping), r.close(s.stopping)); err != nil {
			s.log.Error("worker keeps a device that is gone", "volume", v.entry.Volume, "device", r.id, "error", err)
			return // with its slot, since it counts there
		}
		s.table.freeSlot(v.slot)
	})
}

// udevPatience is how long an open disk may be udev's doing, which looks at
// every new and changed disk.
const udevPatience = 2 * time.Second

// stopUnused stops the device of a volume, but only if nobody has its disk open. It
// returns errVanished if there is no such device of ours any more: its number is not to be
// used then.
func (s *Server) stopUnused(ctx context.Context, v *volume) error {
	deadline := time.Now().Add(udevPatience)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := s.stopOnce(ctx, v)
		if isGone(err) {
			// The device is gone, or only its disk, after an earlier stop.
			err = s.stillOurs(v.info.ID)
		}
		switch {
		case err == nil || !errors.Is(err, errInUse):
			return err
		case time.Now().After(deadline):
			return s.named(ctx, v, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// named adds who has the disk open to an error that only says that somebody has.
func (s *Server) named(ctx context.Context, v *volume, err error) error {
	var open *inUseError
	if !errors.As(err, &open) || open.by != "" {
		return err
	}
	if by, lookErr := s.users.of(ctx, v.info, v.major, v.minor); lookErr == nil && by != "" {
		return &inUseError{v.info.ID, by}
	}
	return err
}

// inUseError matches errInUse.
type inUseError struct {
	device uint32
	by     string // who has the disk open; "" if that is not known
}

func (e *inUseError) Error() string {
	if e.by == "" {
		return fmt.Sprintf("device %d: %v", e.device, errInUse)
	}
	return fmt.Sprintf("device %d: %v (%s)", e.device, errInUse, e.by)
}

func (e *inUseError) Is(target error) bool { return target == errInUse }

// stopOnce leaves the check to the kernel where that has SAFE_STOP_DEV; before,
// it looks for users and stops then, which a user who comes in between loses.
func (s *Server) stopOnce(ctx context.Context, v *volume) error {
	id := v.info.ID
	// Somebody may have deleted it, and another have its number; but not as long
	// as our worker has it open.
	if v.worker == nil || v.worker.isLost() {
		if err := s.stillOurs(id); err != nil {
			return err
		}
	}
	if s.kernel.features().Has(ublk.SafeStop) {
		err := s.kernel.tryStop(id)
		if errors.Is(err, syscall.EBUSY) {
			return &inUseError{device: id}
		}
		return err
	}
	users, err := s.users.of(ctx, v.info, v.major, v.minor)
	if err != nil {
		return err
	}
	if users != "" {
		return &inUseError{id, users}
	}
	return s.kernel.stop(id)
}

// stillOurs returns errVanished if there is no such device, or it is another's.
func (s *Server) stillOurs(id uint32) error {
	info, err := s.kernel.info(id)
	if isGone(err) || err == nil && info.Owner != s.owner.tag {
		return errVanished
	}
	return err
}

func ignoreLost(err error) error {
	if errors.Is(err, worker.ErrLost) {
		return nil
	}
	return err
}
