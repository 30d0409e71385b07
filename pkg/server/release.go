package server

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// A release is the second half of a device's way down: stopped, its disk gone,
// and known to nobody but this server. It runs in the background and is counted.
// Should the server end meanwhile, the next one knows the device by its tag.
type release struct {
	volume string // for the log; "" if it is not known
	id     uint32
	slot   uint32
	// workers may have the device open, or be about to open it.
	workers []*generation
	stopped bool // until then no tag aborts
	// deleted is set once the kernel has taken a delete: the id is not ours
	// from then on, and a second delete could meet another's device.
	deleted bool
	// superseded is set, under the table's mutex, when the kernel has given the id away
	// again: a delete that was given up has been carried out after all.
	superseded bool
	done       chan struct{}
}

// holders are the workers that may have the volume's device open.
func (v *volume) holders() (list []*generation) {
	for _, g := range []*generation{v.worker, v.opener.gen} {
		if g != nil && !slices.Contains(list, g) {
			list = append(list, g)
		}
	}
	return list
}

// release takes over the device of a volume, which nobody uses any more. It is stopped
// first, if it is not.
func (s *Server) release(v *volume, stopped bool) *release {
	r := &release{stopped: stopped, volume: v.entry.Volume, id: v.info.ID, slot: v.slot, workers: v.holders(), done: make(chan struct{})}
	removeBlockNode(v.info.BlockPath(), v.major, v.minor)
	s.startRelease(r)
	return r
}

func (s *Server) startRelease(r *release) {
	s.table.update(func() { s.table.releasing[r.id] = r })
	s.background.Add(1)
	go func() {
		defer s.background.Done()
		defer close(r.done)
		if !s.letGo(r) {
			return // the server ends: the next one finds the device
		}
		s.table.freeSlot(r.slot)
		s.table.update(func() {
			if s.table.releasing[r.id] == r { // else another device of that number is released by now
				delete(s.table.releasing, r.id)
			}
		})
	}()
}

// slowRelease is when a device that the kernel keeps is worth a line in the log.
const slowRelease = 30 * time.Second

// letGo drains, deletes and closes a stopped device, and reports whether the
// kernel let go of it before the server ended.
//
// The order matters. The char device is still open when DEL_DEV_ASYNC is issued,
// so the last reference falls in a kernel worker when the worker closes it, and
// not in the command under the driver's global mutex: deletions run in parallel
// also on kernels that wait for a grace period there.
func (s *Server) letGo(r *release) bool {
	phase := s.metrics.phases(opDetach)
	slow := time.AfterFunc(slowRelease, func() {
		s.log.Warn("kernel keeps a stopped device", "device", r.id, "volume", r.volume)
	})
	defer slow.Stop()
	for pause := time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := s.tryLetGo(r, phase)
		if err == nil {
			return true
		}
		if s.stopping.Err() != nil {
			return false
		}
		s.log.Error("device not deleted", "device", r.id, "volume", r.volume, "error", err)
		select {
		case <-time.After(max(pause, 100*time.Millisecond)):
		case <-s.stopping.Done():
			return false
		}
	}
}

func (s *Server) tryLetGo(r *release, phase func(string)) error {
	ctx := s.stopping
	if !r.stopped {
		if err := s.kernel.stop(r.id); err != nil && !isGone(err) {
			return err
		}
		r.stopped = true
	}
	if err := r.drain(ctx); err != nil {
		return err
	}
	phase("abort")
	if err := s.stillHeld(r); err != nil {
		return err
	}
	if !r.deleted && !s.kernel.noAsyncDelete.Load() {
		err := s.kernel.deleteAsync(r.id)
		switch {
		case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EINVAL):
			s.kernel.noAsyncDelete.Store(true)
		case err != nil && !isGone(err):
			return err
		default:
			r.deleted = true
		}
	}
	if err := r.close(ctx); err != nil {
		return err
	}
	phase("close")
	if !r.deleted {
		// This one waits in the kernel, so not all of them at once.
		if err := s.deleting.Acquire(ctx, 1); err != nil {
			return err
		}
		err := s.kernel.delete(r.id)
		s.deleting.Release(1)
		if err != nil && !isGone(err) {
			return err
		}
		r.deleted = true
	}
	if err := s.waitGone(ctx, r.id); err != nil {
		return err
	}
	phase("delete")
	return nil
}

// stillHeld notes a device that is gone already, so that no delete meets what has its
// number by now. As long as a worker of ours has it open nobody can have that.
func (s *Server) stillHeld(r *release) error {
	s.table.update(func() { r.deleted = r.deleted || r.superseded })
	if r.deleted || slices.ContainsFunc(r.workers, func(g *generation) bool { return !g.isLost() }) {
		return nil
	}
	err := s.stillOurs(r.id)
	if errors.Is(err, errVanished) {
		r.deleted = true
		return nil
	}
	return err
}

// drain waits until the workers have seen every tag of the device abort. Without
// a worker the kernel has aborted them itself.
func (r *release) drain(ctx context.Context) error {
	return r.each(func(p *worker.Process) error { return p.Drain(ctx, r.id) })
}

func (r *release) close(ctx context.Context) error {
	return r.each(func(p *worker.Process) error { return p.Close(ctx, r.id) })
}

func (r *release) each(f func(*worker.Process) error) error {
	for _, g := range r.workers {
		if g.isLost() {
			continue
		}
		if err := ignoreLost(f(g.proc)); err != nil {
			return err
		}
	}
	return nil
}

// waitGone waits until the kernel has forgotten a deleted device, and its id is free. Only
// this one is looked at: the wait must not grow with the number of devices.
func (s *Server) waitGone(ctx context.Context, id uint32) error {
	// It is seldom the first look that finds it gone, and each costs a command.
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		listed, err := ublk.Listed(id)
		if err != nil {
			return err
		}
		// The delete has taken its entry out of sysfs: one that is there is the next
		// device's.
		if listed {
			return nil
		}
		if errors.Is(s.stillOurs(id), errVanished) {
			return nil
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// isGone reports whether a command failed because there is no such device.
func isGone(err error) bool {
	return errors.Is(err, syscall.ENODEV) || errors.Is(err, fs.ErrNotExist)
}
