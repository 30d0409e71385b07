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
}

// ProbeDeleteKind finds out by behaviour, in a few tenths of a second, what
// deleting a device holds up in this kernel. It adds and deletes devices that
// are never started; other traffic of the driver can make an UNLOCKED kernel
// look LOCKED, never the other way round.
func (c *Control) ProbeDeleteKind(ctx context.Context) (DeleteKind, error) {
	o := DeviceOptions{ID: -1, Depth: 1, MaxIOBytes: uint32(os.Getpagesize())}
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
// issues a command that needs the driver's global mutex and changes nothing:
// adding a device that is already there.
func (c *Control) sampleDelete(ctx context.Context, o DeviceOptions, other uint32) (s deleteSample, ok bool, err error) {
	victim, err := c.Add(ctx, o)
	if err != nil {
		return s, false, err
	}
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
	for over := false; !over; {
		if unix.Access(name, unix.F_OK) != nil {
			break
		}
		select {
		case e = <-deleted:
			over = true
		default:
		}
	}
	begin := time.Now()
	info := sys.DevInfo{Queues: 1, Depth: 1, MaxIOBytes: o.MaxIOBytes, DevID: other, Flags: uint64(UserCopy)}
	at, addErr := c.run(ctx, request{op: sys.AddDev, dev: other, in: bytesOf(&info)})
	if e.at.IsZero() && e.err == nil {
		e = <-deleted
	}
	if e.err != nil {
		return s, false, opError(sys.DelDev.String(), int64(victim.ID), e.err)
	}
	if !errors.Is(addErr, unix.EEXIST) {
		return s, false, opError(sys.AddDev.String(), int64(other), fmt.Errorf("adding it twice: got %v, want EEXIST", addErr))
	}
	s = deleteSample{rest: e.at.Sub(begin), blocked: at.Sub(begin)}
	return s, s.rest > 0, nil
}

// classifyDelete counts the samples in which the other command got through while
// the deletion went on. Under load some are spoilt, nearly always to the other
// side: a command that met no lock can be late all the same, one that met it
// cannot be early. So a good third of them proves that there is none.
func classifyDelete(samples []deleteSample) DeleteKind {
	usable := usableSamples(samples)
	if len(usable) < deleteMinSamples {
		return DeleteNoWait
	}
	free := 0
	for _, s := range usable {
		if 2*s.blocked < s.rest {
			free++
		}
	}
	if free >= deleteMinSamples && 11*free >= 4*len(usable) {
		return DeleteUnlocked
	}
	return DeleteLocked
}

// usableSamples leaves out those in which the probing thread was held up, so
// that it saw only the last bit of the deletion.
func usableSamples(samples []deleteSample) []deleteSample {
	if len(samples) == 0 {
		return nil
	}
	byRest := slices.SortedFunc(slices.Values(samples), func(a, b deleteSample) int { return cmp.Compare(a.rest, b.rest) })
	least := max(shortDelete, byRest[len(byRest)/2].rest/2)
	i, _ := slices.BinarySearchFunc(byRest, least, func(s deleteSample, d time.Duration) int { return cmp.Compare(s.rest, d) })
	return byRest[i:]
}
