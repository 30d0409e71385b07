package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// ownerMagic is the upper half of the tag of every device that a bench makes
// ("ublB"); the lower half is its process, so that what a killed one left behind
// is told from what a running one uses.
const ownerMagic = 0x75626c42

// A fleet is devices that this process serves itself, with nothing in between.
// Commands go through one io_uring; as many run at a time as there are callers.
type fleet struct {
	control *ublk.Control
	rings   []*ublk.Ring
	owner   uint64
	// exact says that the kernel can be asked whether a number is free.
	exact bool

	turn atomic.Uint32
	mu   sync.Mutex
	live map[uint32]*bare
}

// A bare device has a number, and once attached a server, this process.
type bare struct {
	info ublk.DeviceInfo
	dev  *ublk.Device
	file *os.File
}

// commandsAtOnce is as many as any table has callers.
const commandsAtOnce = 64

func newFleet() (*fleet, error) {
	f := &fleet{owner: ownerMagic<<32 | uint64(uint32(os.Getpid())), live: make(map[uint32]*bare)}
	var err error
	f.control, err = ublk.OpenControl(ublk.ControlOptions{Workers: commandsAtOnce, Timeout: 2 * time.Minute, Owner: f.owner})
	if err != nil {
		return nil, err
	}
	for range 2 {
		r, err := ublk.NewRing(ublk.RingOptions{})
		if err != nil {
			return nil, errors.Join(err, f.close(context.Background()))
		}
		f.rings = append(f.rings, r)
	}
	return f, nil
}

// add is ADD_DEV and SET_PARAMS.
func (f *fleet) add(ctx context.Context, features ublk.Features, p ublk.Params) (*bare, error) {
	// Registered whatever comes: a command that was issued has its effect also if
	// nobody waits for the answer.
	info, err := f.control.Add(context.WithoutCancel(ctx), ublk.DeviceOptions{ID: -1, Features: features, Owner: f.owner})
	if err != nil {
		return nil, explainAdd(err)
	}
	b := &bare{info: info}
	f.mu.Lock()
	f.live[info.ID] = b
	f.mu.Unlock()
	return b, f.control.SetParams(ctx, info.ID, p)
}

// explainAdd says what to do about a kernel that takes no more devices.
func explainAdd(err error) error {
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: the kernel has no number free for one more device: write a larger one to %s, or measure fewer (--devices, --others, --idle)", err, limitPath)
	}
	if errors.Is(err, syscall.ENOMEM) {
		return fmt.Errorf("%w: measure fewer devices (--devices, --others, --idle), or give the machine more memory", err)
	}
	return err
}

const limitPath = "/sys/module/ublk_drv/parameters/ublks_max"

// attach opens and maps the char device and FETCHes all tags.
func (f *fleet) attach(b *bare, t ublk.Target) (err error) {
	if b.dev, err = ublk.OpenDevice(b.info); err != nil {
		return err
	}
	ring := f.rings[int(f.turn.Add(1))%len(f.rings)]
	return b.dev.Serve(0, ring, t, nil)
}

func (f *fleet) start(ctx context.Context, b *bare) error {
	return f.control.Start(ctx, b.info.ID, os.Getpid())
}

func (f *fleet) stop(ctx context.Context, b *bare) error { return f.control.Stop(ctx, b.info.ID) }

// aborted waits until the kernel has taken back every tag.
func (b *bare) aborted(ctx context.Context) error {
	if b.dev == nil {
		return nil
	}
	select {
	case <-b.dev.Done():
		return b.dev.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *bare) closeChar() (err error) {
	if b.dev != nil {
		if err = b.dev.Close(); err != nil {
			return err // tags are out: nothing may be closed
		}
		b.dev = nil
	}
	if b.file != nil {
		err = b.file.Close()
		b.file = nil
	}
	return err
}

// deletePlain is what most programs do: close, then DEL_DEV, which waits.
func (f *fleet) deletePlain(ctx context.Context, b *bare) error {
	if err := b.aborted(ctx); err != nil {
		return err
	}
	if err := b.closeChar(); err != nil {
		return err
	}
	if err := f.control.Delete(ctx, b.info.ID); err != nil {
		return err
	}
	f.forget(b)
	return nil
}

// deleteOpen is the device server's order: DEL_DEV_ASYNC while the char device is
// open, then munmap and close. It does not wait until the device is gone.
func (f *fleet) deleteOpen(ctx context.Context, b *bare) error {
	if err := b.aborted(ctx); err != nil {
		return err
	}
	if err := f.control.DeleteAsync(ctx, b.info.ID); err != nil {
		return err
	}
	return b.closeChar()
}

// gone waits until the kernel has let go of the number.
func (f *fleet) gone(ctx context.Context, b *bare) error {
	if err := f.released(ctx, b.info.ID); err != nil {
		return err
	}
	f.forget(b)
	return nil
}

// released waits for a number, whoever's device it was. Cheap questions come
// first: the last one takes the driver's global mutex.
func (f *fleet) released(ctx context.Context, id uint32) error {
	class := fmt.Sprintf("/sys/class/ublk-char/ublkc%d", id)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 2*time.Millisecond) {
		if unix.Access(class, unix.F_OK) != nil {
			if ok, err := f.isFree(ctx, id); ok || err != nil {
				return err
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fleet) isFree(ctx context.Context, id uint32) (bool, error) {
	if f.exact {
		return f.control.Released(ctx, id)
	}
	_, err := f.control.Info(ctx, id)
	if isGone(err) {
		return true, nil
	}
	return false, err
}

// tryExact asks about a device that is there: a kernel that can't say so can't be
// trusted to say the opposite.
func (f *fleet) tryExact(ctx context.Context) error {
	info, err := f.control.Add(ctx, ublk.DeviceOptions{ID: -1, Depth: 1, Owner: f.owner})
	if err != nil {
		return explainAdd(err)
	}
	free, err := f.control.Released(ctx, info.ID)
	f.exact = !free && err == nil
	return f.control.Delete(context.WithoutCancel(ctx), info.ID)
}

func (f *fleet) forget(b *bare) {
	f.mu.Lock()
	delete(f.live, b.info.ID)
	f.mu.Unlock()
}

// remove takes down a device in whatever state it is.
func (f *fleet) remove(ctx context.Context, b *bare) error {
	info, err := f.control.Info(ctx, b.info.ID)
	if isGone(err) || err == nil && info.Owner != f.owner {
		f.forget(b)
		return b.closeChar()
	}
	if err := f.stop(ctx, b); err != nil && !isGone(err) {
		return err
	}
	if err := f.deleteOpen(ctx, b); err != nil && !isGone(err) {
		return err
	}
	if err := b.closeChar(); err != nil {
		return err
	}
	return f.gone(ctx, b)
}

// close removes every device that is left, then ends the rings.
func (f *fleet) close(ctx context.Context) error {
	var left []*bare
	for _, b := range f.live {
		left = append(left, b)
	}
	errs := make([]error, len(left))
	_ = each(ctx, 16, len(left), func(ctx context.Context, i int) error {
		errs[i] = f.remove(ctx, left[i])
		return nil
	})
	for _, r := range f.rings {
		errs = append(errs, r.Close())
	}
	return errors.Join(append(errs, f.control.Close())...)
}

// sweep removes devices of benches that were killed.
func (f *fleet) sweep(ctx context.Context) error {
	ids, err := ublk.Devices()
	if err != nil {
		return err
	}
	for _, id := range ids {
		info, err := f.control.Info(ctx, id)
		if err != nil || info.Owner>>32 != ownerMagic || unix.Kill(int(uint32(info.Owner)), 0) == nil {
			continue
		}
		if err := f.control.Stop(ctx, id); err != nil && !isGone(err) {
			return fmt.Errorf("remove device %d of a bench that was killed: %w", id, err)
		}
		if err := f.control.Delete(ctx, id); err != nil && !isGone(err) {
			return fmt.Errorf("remove device %d of a bench that was killed: %w", id, err)
		}
	}
	return nil
}

func isGone(err error) bool {
	return errors.Is(err, syscall.ENODEV) || errors.Is(err, fs.ErrNotExist)
}

// each runs f for 0 to n-1 with callers at a time, and returns when all have
// ended; after an error nothing new begins.
func each(ctx context.Context, callers, n int, f func(ctx context.Context, i int) error) error {
	g, running := errgroup.WithContext(ctx)
	g.SetLimit(callers)
	for i := range n {
		if running.Err() != nil {
			break
		}
		g.Go(func() error {
			if err := running.Err(); err != nil {
				return err
			}
			return f(running, i)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err() // it may have ended before anything began
}
