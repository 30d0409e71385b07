package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"golang.org/x/sys/unix"
)

// reclaimStepBytes is how much is cut off a deleted file at once: small enough
// that one step holds no journal for long, and that stopping is prompt.
const reclaimStepBytes = 64 << 20

// trashed is a file in the trash.
type trashed struct {
	name    string
	counted int64 // its part of Pool.reclaiming
}

// reap hands a file to Reclaim.
func (p *Pool) reap(t trashed) {
	p.mu.Lock()
	p.doomed = append(p.doomed, t)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Reclaim gives back the space of deleted volumes, paced, until ctx ends. Where it
// stopped, it goes on when it is called again, in this process or a later one.
// Only one call may run at a time. A file that can't be freed is reported and
// tried again when the pool is opened anew; it does not keep the others.
func (p *Pool) Reclaim(ctx context.Context, report func(error)) {
	idleIO()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		for {
			t, ok := p.nextDoomed()
			if !ok {
				break
			}
			err := p.free(ctx, &t)
			if ctx.Err() != nil {
				p.reap(t)
				return
			}
			if err != nil {
				report(fmt.Errorf("reclaim pool %s: free %s: %w", p.o.Name, t.name, err))
			}
		}
	}
}

// idleIO gives this goroutine a thread of its own whose I/O comes after all other
// (ioprio_set(2), IOPRIO_CLASS_IDLE), where the disk's scheduler knows priorities.
// The thread ends with the goroutine, as it is never unlocked.
func idleIO() {
	const whoProcess, self, classIdle = 1, 0, 3 << 13
	runtime.LockOSThread()
	// Without it the rate is still bounded.
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, self, classIdle)
}

func (p *Pool) nextDoomed() (trashed, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.doomed) == 0 {
		return trashed{}, false
	}
	t := p.doomed[0]
	p.doomed = p.doomed[1:]
	return t, true
}

// free cuts a file shorter from its end, as fast as the limiter lets it, and
// removes it when nothing is left.
func (p *Pool) free(ctx context.Context, t *trashed) error {
	fd, err := unix.Openat(int(p.trash.Fd()), t.name, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		p.recount(t, 0)
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	p.recount(t, allocated(st))
	for t.counted > 0 && st.Size > 0 {
		if err := unix.Ftruncate(fd, max(0, st.Size-reclaimStepBytes)); err != nil {
			return err
		}
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		freed := t.counted - allocated(st)
		p.recount(t, allocated(st))
		// Holes cost nothing; a step may free a little more than its bytes.
		if err := p.limiter.WaitN(ctx, int(min(max(freed, 0), reclaimStepBytes))); err != nil {
			<-ctx.Done() // it also fails early, when the wait would outlive ctx
			return ctx.Err()
		}
	}
	if err := unix.Unlinkat(int(p.trash.Fd()), t.name, 0); err != nil {
		return err
	}
	p.recount(t, 0)
	p.changed()
	return nil
}

// recount sets what a file in the trash counts for.
func (p *Pool) recount(t *trashed, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reclaiming += bytes - t.counted
	t.counted = bytes
}
