package server

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// A recovery gives a volume whose worker is gone to another one. Meanwhile the
// kernel holds the volume's I/O.
type recovery struct {
	volume *volume
	began  time.Time
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
}

func newRecovery(v *volume) *recovery {
	r := &recovery{volume: v, began: time.Now(), done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// stop ends the recovery and waits until it has let the volume alone.
func (r *recovery) stop() {
	r.cancel()
	<-r.done
}

// recoverLost takes every volume that lost its worker, busy ones first, and
// starts its recovery.
func (s *Server) recoverLost() {
	if s.stopping.Err() != nil {
		return // the next server's task
	}
	list := s.table.orphaned()
	if len(list) > 0 {
		s.log.Warn("recovering devices", "count", len(list))
	}
	for _, r := range list {
		s.startRecovery(r)
	}
}

func (s *Server) startRecovery(r *recovery) {
	s.background.Add(1)
	// The order of the turns is that of the calls.
	turn := s.lanes.of(servedBy(r.volume.entry.Worker)).recovering.take()
	go func() {
		defer s.background.Done()
		s.recoverVolume(r, turn)
		close(r.done)
		r.cancel()
		s.end(r.volume, opRecover)
	}()
}

// end gives a volume back and recovers it if it lost its worker meanwhile.
func (s *Server) end(v *volume, op string) {
	if r := s.table.end(v, op); r != nil {
		s.startRecovery(r)
	}
}

// errVanished: the kernel does not have the device any more. Nothing recovers
// that.
var errVanished = errors.New("the kernel's device is gone")

// recoverVolume tries until it succeeds, is stopped, or the device has vanished.
func (s *Server) recoverVolume(r *recovery, turn *turn) {
	v := r.volume
	defer turn.done()
	stopOnExit := context.AfterFunc(s.stopping, r.cancel)
	defer stopOnExit()
	if turn.wait(r.ctx) != nil {
		return
	}
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := s.recoverOnce(r.ctx, r)
		switch {
		case err == nil:
			took := time.Since(r.began)
			s.metrics.recovery.Observe(took.Seconds())
			s.log.Info("volume recovered", "volume", v.entry.Volume, "device", v.info.ID, "took", took.String())
			return
		case r.ctx.Err() != nil:
			return
		case errors.Is(err, errVanished):
			s.table.update(func() { v.vanish(err.Error()) })
			s.log.Error("volume lost", "volume", v.entry.Volume, "device", v.info.ID, "error", err)
			return
		}
		s.table.update(func() { v.message = err.Error() })
		s.metrics.recoveryErrors.Inc()
		s.log.Error("volume not recovered yet", "volume", v.entry.Volume, "device", v.info.ID, "error", err)
		// A turn is for those that can go on.
		turn.done()
		select {
		case <-time.After(pause):
		case <-r.ctx.Done():
			return
		}
	}
}

// recoverOnce is the way of one device from a dead worker to the active one.
func (s *Server) recoverOnce(ctx context.Context, r *recovery) error {
	v, id := r.volume, r.volume.info.ID
	gen, err := s.armed(ctx, v)
	if err != nil {
		return err
	}
	if err := s.waitFences(ctx, v, gen.fence.fileSystem); err != nil {
		return err
	}
	// From here on this worker may write: it is the one to wait for should it
	// die, whether the command succeeds or not.
	s.table.update(func() { v.worker = gen })
	if err := s.stillThere(ctx, v); err != nil {
		return err
	}
	if err := s.kernel.endRecovery(id, gen.proc.Pid()); err != nil {
		return err
	}
	s.table.update(func() {
		v.state, v.message, v.opener = serverv1.Device_LIVE, "", opener{}
		v.entry.Worker = gen.name
	})
	if err := s.rejournal(v); err != nil {
		// Only the worker's name is old, and all workers of the file system are alike.
		s.log.Error("recovery not journaled", "volume", v.entry.Volume, "error", err)
	}
	return nil
}

// An opener is a worker that was told to open a device in a recovery, which may have been
// ended since: it may have it open until it is told to close it, or is gone. The zero value
// stands for none.
type opener struct {
	gen   *generation
	armed bool // it has, and all tags are armed
}

// armed returns a worker that has the device open and armed: that of an earlier try, or of
// an earlier recovery, or else the active one.
func (s *Server) armed(ctx context.Context, v *volume) (*generation, error) {
	s.table.mu.Lock()
	o := v.opener
	s.table.mu.Unlock()
	if o.gen != nil && !o.gen.isLost() {
		if o.armed {
			return o.gen, nil
		}
		if err := s.disarm(ctx, v, o.gen); err != nil {
			return nil, err
		}
	}
	return s.arm(ctx, v)
}

// disarm has a worker give up a device that it may have opened half way. Tags that are
// armed are the kernel's until it takes them back, so what can't be closed ends with the
// worker: the rest of its devices are recovered, too, which costs them a moment.
func (s *Server) disarm(ctx context.Context, v *volume, gen *generation) error {
	err := gen.proc.Close(ctx, v.info.ID)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err = ignoreLost(err); err != nil {
		s.log.Error("worker can't give up a device, ending it", "volume", v.entry.Volume, "device", v.info.ID, "error", err)
		gen.proc.Kill()
		return fmt.Errorf("device %d is half open in a worker that was ended for it: %w", v.info.ID, err)
	}
	s.table.update(func() { v.opener = opener{} })
	return nil
}

// stillThere returns an error if the recovery is to end: whatever has the number of a
// device that vanished is not to be touched.
func (s *Server) stillThere(ctx context.Context, v *volume) error {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if v.vanished {
		return errVanished
	}
	return ctx.Err()
}

// arm has the active worker open the device and the file. The kernel gives it
// no request before END_USER_RECOVERY, so this need not wait for the fences.
func (s *Server) arm(ctx context.Context, v *volume) (*generation, error) {
	id := v.info.ID
	if err := s.waitQuiesced(ctx, id); err != nil {
		return nil, err
	}
	b, err := s.backings.open(s.poolsDir, v.entry.Path, v.entry.ReadOnly)
	if err != nil {
		return nil, err
	}
	if b.inode != v.entry.Inode {
		return nil, fmt.Errorf("%s is another file than the one that was attached", b.path)
	}
	gen, err := s.workers.active(ctx, b.device)
	if err != nil {
		return nil, err
	}
	// The file was waited for, perhaps for long.
	if err := s.stillThere(ctx, v); err != nil {
		return nil, err
	}
	if err := s.startKernelRecovery(ctx, id); err != nil {
		return nil, err
	}
	s.table.update(func() { v.opener = opener{gen: gen} })
	if err := gen.proc.Attach(ctx, attachment(v.info, b, &v.entry, v.slot)); err != nil {
		return nil, fmt.Errorf("serve device %d: %w", id, err)
	}
	s.table.update(func() { v.opener.armed = true })
	return gen, nil
}

// waitFences returns nil once no dead worker can write to the volume's file any more.
//
// Without this wait, acknowledged data is lost: a write that was under way to
// the file when its worker died is done again by the new worker, and so is
// whatever overwrites it later; and then the first write arrives.
func (s *Server) waitFences(ctx context.Context, v *volume, fileSystem uint64) error {
	s.table.update(func() { v.message = "waiting for the file I/O of a dead worker" })
	return s.awaitFences(ctx, fileSystem)
}

// quiesceLimit bounds one wait for the kernel to notice that a worker is gone,
// which takes as long as the dead process needs to be torn down. After it the
// recovery starts anew, and says what it waits for.
const quiesceLimit = 10 * time.Second

// waitQuiesced waits until the kernel has noticed that the device's server is
// gone.
func (s *Server) waitQuiesced(ctx context.Context, id uint32) error {
	ctx, cancel := context.WithTimeoutCause(ctx, quiesceLimit, fmt.Errorf("the kernel still counts the dead worker as the server of device %d", id))
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		info, err := s.kernel.info(id)
		switch {
		case isGone(err) || err == nil && info.Owner != s.owner.tag:
			return errVanished
		case err != nil:
			return err
		case info.State == ublk.StateDead:
			return fmt.Errorf("device %d was stopped: %w", id, errVanished)
		case info.State != ublk.StateLive:
			return nil
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// startKernelRecovery issues START_USER_RECOVERY, which answers EBUSY as long as
// the dead worker's descriptors are not closed.
func (s *Server) startKernelRecovery(ctx context.Context, id uint32) error {
	ctx, cancel := context.WithTimeoutCause(ctx, quiesceLimit, fmt.Errorf("device %d is still open in another process", id))
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := s.kernel.startRecovery(id)
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
