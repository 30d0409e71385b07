package ublk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

const (
	deleteSamples    = 11
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
	other, err := c.Add(ctx, o)
	if err != nil {
		return DeleteUnknown, err
	}
	defer func() {
		// The probe's devices must go, whatever became of ctx.
		_ = c.Delete(context.WithoutCancel(ctx), other.ID)
	}()
	var samples []deleteSample
	for range deleteSamples {
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
		return s, false, err
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
	var e end
	looked := begin
	for over := false; !over; {
		now := time.Now()
		if unix.Access(name, unix.F_OK) != nil {
			break
		}
		looked = now
		select {
		case e = <-deleted:
			over = true
		default:
		}
	}
	begin = time.Now()
	s.unseen = begin.Sub(looked)
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
	long := longSamples(samples)
	if len(long) < deleteMinSamples {
		// Short deletions, or a prober that came too late to see how long they
		// were: only those count that it can't have missed.
		short := 0
		for _, s := range samples {
			if s.rest+s.unseen < 2*shortDelete {
				short++
			}
		}
		if short >= deleteMinSamples && 2*short > len(samples) {
			return DeleteNoWait
		}
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
