package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// A kernel issues the control commands. Each has a deadline of its own and none
// ends with the call that wanted it: a command can't be taken back, so the
// operation always waits for its answer and knows what to undo.
type kernel struct {
	control *ublk.Control
	metrics *metrics
	// noAsyncDelete is set once the kernel has refused DEL_DEV_ASYNC.
	noAsyncDelete atomic.Bool

	mu        sync.Mutex
	wedged    string
	wasWedged bool
	kind      ublk.DeleteKind
}

// do runs one command, measures it, and notes a kernel that does not answer.
func (k *kernel) do(op string, f func(context.Context) error) error {
	start := time.Now()
	err := f(context.Background())
	k.metrics.command(op, time.Since(start))
	if errors.Is(err, ublk.ErrWedged) {
		k.mu.Lock()
		k.wedged, k.wasWedged = err.Error(), true
		k.mu.Unlock()
		k.metrics.wedged.Set(1)
	}
	return err
}

// recheck tries a command that needs what a stuck one may hold, the driver's
// global mutex, and takes the mark away if it is answered.
func (k *kernel) recheck(owner uint64) error {
	info, err := k.add(ublk.DeviceOptions{ID: -1, Depth: 1, Owner: owner})
	if err != nil {
		return err
	}
	if err := k.delete(info.ID); err != nil {
		return err
	}
	k.mu.Lock()
	k.wedged = ""
	k.mu.Unlock()
	k.metrics.wedged.Set(0)
	return nil
}

// wedgedMessage is "" as long as commands are answered in time.
func (k *kernel) wedgedMessage() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wedged
}

// gaveUp says whether a command was ever given up at its deadline.
func (k *kernel) gaveUp() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wasWedged
}

func (k *kernel) deleteKind() ublk.DeleteKind {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kind
}

// probeDeleteKind finds out what deletions wait for. It is only reported: the
// order of release is good on every kind.
func (k *kernel) probeDeleteKind(ctx context.Context) error {
	kind, err := k.control.ProbeDeleteKind(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kind = kind
	k.metrics.setKind(kind)
	return err
}

func (k *kernel) features() ublk.Features { return k.control.Features() }

func (k *kernel) add(o ublk.DeviceOptions) (info ublk.DeviceInfo, err error) {
	err = k.do("add", func(ctx context.Context) error {
		info, err = k.control.Add(ctx, o)
		return err
	})
	return info, err
}

func (k *kernel) setParams(id uint32, p ublk.Params) error {
	return k.do("set_params", func(ctx context.Context) error { return k.control.SetParams(ctx, id, p) })
}

func (k *kernel) params(id uint32) (p ublk.Params, err error) {
	err = k.do("get_params", func(ctx context.Context) error {
		p, err = k.control.Params(ctx, id)
		return err
	})
	return p, err
}

func (k *kernel) info(id uint32) (info ublk.DeviceInfo, err error) {
	err = k.do("get_info", func(ctx context.Context) error {
		info, err = k.control.Info(ctx, id)
		return err
	})
	return info, err
}

func (k *kernel) start(id uint32, pid int) error {
	return k.do("start", func(ctx context.Context) error { return k.control.Start(ctx, id, pid) })
}

func (k *kernel) stop(id uint32) error {
	return k.do("stop", func(ctx context.Context) error { return k.control.Stop(ctx, id) })
}

func (k *kernel) tryStop(id uint32) error {
	return k.do("try_stop", func(ctx context.Context) error { return k.control.TryStop(ctx, id) })
}

func (k *kernel) delete(id uint32) error {
	return k.do("delete", func(ctx context.Context) error { return k.control.Delete(ctx, id) })
}

func (k *kernel) deleteAsync(id uint32) error {
	return k.do("delete_async", func(ctx context.Context) error { return k.control.DeleteAsync(ctx, id) })
}

func (k *kernel) updateSize(id uint32, bytes int64) error {
	return k.do("update_size", func(ctx context.Context) error { return k.control.UpdateSize(ctx, id, uint64(bytes)/512) })
}

func (k *kernel) startRecovery(id uint32) error {
	return k.do("start_recovery", func(ctx context.Context) error { return k.control.StartRecovery(ctx, id) })
}

func (k *kernel) endRecovery(id uint32, pid int) error {
	return k.do("end_recovery", func(ctx context.Context) error { return k.control.EndRecovery(ctx, id, pid) })
}
