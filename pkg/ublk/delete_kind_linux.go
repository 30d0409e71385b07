package ublk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

const (
	deleteSamples    = 11
	deleteSamplesMax = 33 // of a machine so busy that 11 say nothing
	deleteMinSamples = 3
	// shortDelete is a deletion too quick to hold anybody up: less than any
	// grace period takes.
	shortDelete = 500 * time.Microsecond
)

// A deleteSample is what an unrelated command met during one deletion.
type deleteSample struct {
	// rest is how long the deletion still took after the device had left
	// /sys, and blocked how long the other command took from then on.
	rest, blocked time.Duration
	// unseen is by how much rest may be too short: the time between the last look
	// at /sys that found the device and the first that did not.
	unseen time.Duration
	// busy is for how much of unseen this process was computing on another thread: the
	// deletion itself, on a machine with one CPU. It can't have waited then.
	busy time.Duration
	// alone is how long the same command took with nothing else going on: what
	// the machine needs for it, loaded as it is.
	alone time.Duration
}

// ProbeDeleteKind finds out by behaviour, in a few tenths of a second, what
// deleting a device holds up in this kernel. It adds and deletes devices that
// are never started; other traffic of the driver can make an UNLOCKED kernel
// look LOCKED, never the other way round.
func (c *Control) ProbeDeleteKind(ctx context.Context) (DeleteKind, error) {
	o := DeviceOptions{ID: -1, Depth: 1, MaxIOBytes: uint32(os.Getpagesize()), Owner: c.opt.Owner}
	if computes, err := c.deletionsCompute(ctx, o); err != nil {
		return DeleteUnknown, err
	} else if computes {
		return DeleteNoWait, nil
	}
	other, err := c.Add(ctx, o)
	if err != nil {
		return DeleteUnknown, err
	}
	defer func() {
		// The probe's devices must go, whatever became of ctx.
		_ = c.Delete(context.WithoutCancel(ctx), other.ID)
	}()
	var samples []deleteSample
	for n := 0; n < deleteSamples || n < deleteSamplesMax && !conclusive(samples); n++ {
		s, ok, err := c.sampleDelete(ctx, o, other.ID)
		if err != nil {
			return DeleteUnknown, err
		}
		if ok {
			samples = append(samples, s)
		}
	}
	return classifyDelete(samples), nil
}

// sampleDelete deletes a device, and as soon as only the end of that is left,
// issues a command that needs the driver's global mutex.
func (c *Control) sampleDelete(ctx context.Context, o DeviceOptions, other uint32) (s deleteSample, ok bool, err error) {
	victim, err := c.Add(ctx, o)
	if err != nil {
		return s, false, err
	}
	begin := time.Now()
	at, err := c.addTwice(ctx, o, other)
	if err != nil {
		return s, false, errors.Join(err, c.Delete(context.WithoutCancel(ctx), victim.ID))
	}
	s.alone = at.Sub(begin)
	type end struct {
		at  time.Time
		err error
	}
	deleted := make(chan end, 1)
	go func() {
		at, err := c.run(context.WithoutCancel(ctx), request{op: sys.DelDev, dev: victim.ID})
		deleted <- end{at, err}
	}()
	name := fmt.Sprintf("/sys/class/ublk-char/ublkc%d", victim.ID)
	// The CPU time of other threads is told from this one's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var e end
	looked, computed := begin, othersCPUTime()
	for over := false; !over; {
		now, cpu := time.Now(), othersCPUTime()
		if unix.Access(name, unix.F_OK) != nil {
			break
		}
		looked, computed = now, cpu
		select {
		case e = <-deleted:
			over = true
		default:
		}
	}
	begin = time.Now()
	s.unseen, s.busy = begin.Sub(looked), othersCPUTime()-computed
	at, err = c.addTwice(ctx, o, other)
	if e.at.IsZero() && e.err == nil {
		e = <-deleted
	}
	if e.err != nil {
		return s, false, opError(sys.DelDev.String(), int64(victim.ID), e.err)
	}
	s.rest, s.blocked = e.at.Sub(begin), at.Sub(begin)
	return s, err == nil, err
}

// othersCPUTime is for how long the other threads of this process, those of io_uring
// included, have been computing (clock_gettime(2)).
func othersCPUTime() time.Duration {
	var process, thread unix.Timespec
	// Neither clock can be missing.
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &process)
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &thread)
	return time.Duration(process.Nano() - thread.Nano())
}

// addTwice adds a device that is there: that takes the global mutex, fails, and
// changes nothing.
func (c *Control) addTwice(ctx context.Context, o DeviceOptions, id uint32) (time.Time, error) {
	info := sys.DevInfo{Queues: 1, Depth: 1, MaxIOBytes: o.MaxIOBytes, DevID: id, Flags: uint64(UserCopy)}
	at, err := c.run(ctx, request{op: sys.AddDev, dev: id, in: bytesOf(&info)})
	if !errors.Is(err, unix.EEXIST) {
		return at, opError(sys.AddDev.String(), int64(id), fmt.Errorf("adding it twice: got %v, want EEXIST", err))
	}
	return at, nil
}

// classifyDelete counts the samples in which the other command got through while
// the deletion went on. Load spoils some of them, nearly always to the other
// side: a command that met no lock can be late all the same, one that met it
// cannot be early. So a good third of them proves that there is none. Where the
// machine is too slow to tell, the answer is LOCKED, which promises nothing.
func classifyDelete(samples []deleteSample) DeleteKind {
	long, short := longSamples(samples), shortSamples(samples)
	if short >= deleteMinSamples && (len(long) < deleteMinSamples || 2*short > len(samples)) {
		// Hardly any deletion was seen to wait, or most can't have done so unseen: a
		// kernel waits at each.
		return DeleteNoWait
	}
	if len(long) < deleteMinSamples {
		return DeleteLocked
	}
	free, usable := 0, 0
	for _, s := range long {
		if 3*s.alone > s.rest {
			continue
		}
		usable++
		if 2*s.blocked < s.rest {
			free++
		}
	}
	if free >= deleteMinSamples && 11*free >= 4*usable {
		return DeleteUnlocked
	}
	return DeleteLocked
}

// conclusive says whether the samples show one thing: that deletions wait, or that they
// don't. A little of both is what a busy machine shows.
func conclusive(samples []deleteSample) bool {
	long, short := len(longSamples(samples)) >= deleteMinSamples, shortSamples(samples) >= deleteMinSamples
	return long != short
}

// shortSamples counts the deletions that can't have waited without being seen: neither
// that, nor that the prober came too late.
func shortSamples(samples []deleteSample) (n int) {
	for _, s := range samples {
		if s.rest+s.unseen-s.busy < 2*shortDelete {
			n++
		}
	}
	return n
}

// longSamples leaves out those in which the probing thread was held up, so that
// it saw only the last bit of the deletion.
func longSamples(samples []deleteSample) []deleteSample {
	if len(samples) == 0 {
		return nil
	}
	byRest := slices.SortedFunc(slices.Values(samples), func(a, b deleteSample) int { return cmp.Compare(a.rest, b.rest) })
	least := max(shortDelete, byRest[len(byRest)/2].rest/2)
	i, _ := slices.BinarySearchFunc(byRest, least, func(s deleteSample, d time.Duration) int { return cmp.Compare(s.rest, d) })
	return byRest[i:]
}
