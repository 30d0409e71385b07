package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// The table kernel: STOP and DEL of many single-queue null devices, in the order
// of most programs and in the device server's, issued by several callers. It is
// the table by which the author of the driver's DEL_DEV fix showed it.

// Ways and parts of the table.
const (
	wayPlain = "plain order"
	wayOurs  = "our order"

	partStop   = "STOP"
	partDelete = "DEL"
	partBoth   = "STOP+DEL"
)

// kernelPoint is one wave: all devices stopped, then all deleted, or each stopped
// and deleted before the next.
type kernelPoint struct {
	way     string
	apart   bool
	threads int
}

func (b *bench) kernelRound(ctx context.Context, round int) error {
	var points []kernelPoint
	for _, threads := range b.o.Threads {
		for _, apart := range []bool{true, false} {
			for _, way := range []string{wayPlain, wayOurs} {
				points = append(points, kernelPoint{way, apart, threads})
			}
		}
	}
	for _, p := range turns(points, round) {
		b.say("kernel: %s, %d callers, STOP and DEL %s", p.way, p.threads, map[bool]string{true: "apart", false: "together"}[p.apart])
		if err := b.kernelWave(ctx, p); err != nil {
			return fmt.Errorf("%s, %d callers: %w", p.way, p.threads, err)
		}
	}
	return nil
}

func (b *bench) kernelWave(ctx context.Context, p kernelPoint) error {
	list, err := b.raiseNull(ctx, b.o.Devices)
	if err != nil {
		return err
	}
	stop := func(ctx context.Context, i int) error { return b.fleet.stop(ctx, list[i]) }
	del := func(ctx context.Context, i int) error { return b.fleet.deletePlain(ctx, list[i]) }
	if p.way == wayOurs {
		del = func(ctx context.Context, i int) error { return b.fleet.deleteOpen(ctx, list[i]) }
	}
	key := func(part string) Key {
		return Key{Table: TableKernel, Part: part, Unit: "s", Way: p.way, Load: p.threads}
	}
	begin := time.Now()
	if !p.apart {
		err := each(ctx, p.threads, len(list), func(ctx context.Context, i int) error {
			if err := stop(ctx, i); err != nil {
				return err
			}
			return del(ctx, i)
		})
		if err != nil {
			return err
		}
		end, err := b.allGone(ctx, list, p)
		if err != nil {
			return err
		}
		b.report.add(key(partBoth), end.Sub(begin).Seconds())
		return nil
	}
	if err := each(ctx, p.threads, len(list), stop); err != nil {
		return err
	}
	b.report.add(key(partStop), time.Since(begin).Seconds())
	begin = time.Now()
	if err := each(ctx, p.threads, len(list), del); err != nil {
		return err
	}
	end, err := b.allGone(ctx, list, p)
	if err != nil {
		return err
	}
	b.report.add(key(partDelete), end.Sub(begin).Seconds())
	return nil
}

// allGone returns when no number of the list was taken any more. It ends the clock of our
// order, which leaves the last step to the kernel.
//
// To ask costs a command, which the plain order does not have: with one for each device
// the clock would show the questions. So it stops when those that were let go last are
// gone, and the others are asked about after that; one that was not gone yet sets it anew.
func (b *bench) allGone(ctx context.Context, list []*bare, p kernelPoint) (at time.Time, err error) {
	if p.way != wayOurs {
		return time.Now(), nil // DEL_DEV has waited
	}
	n := max(0, len(list)-2*p.threads)
	gone := func(list []*bare) error {
		return each(ctx, p.threads, len(list), func(ctx context.Context, i int) error { return b.fleet.gone(ctx, list[i]) })
	}
	if err := gone(list[n:]); err != nil {
		return at, err
	}
	at = time.Now()
	for _, d := range list[:n] {
		free, err := b.fleet.isFree(ctx, d.info.ID)
		if err != nil {
			return at, err
		}
		if free {
			b.fleet.forget(d)
			continue
		}
		if err := b.fleet.gone(ctx, d); err != nil {
			return at, err
		}
		at = time.Now()
	}
	return at, nil
}

// raiseNull brings up n devices that complete every request at once.
func (b *bench) raiseNull(ctx context.Context, n int) ([]*bare, error) {
	list := make([]*bare, n)
	features := b.fleet.control.Features() & ublk.NoAutoPartScan
	err := each(ctx, 16, n, func(ctx context.Context, i int) error {
		d, err := b.fleet.add(ctx, features, ublk.Params{Sectors: 1 << 11})
		if err != nil {
			return err
		}
		list[i] = d
		if err := b.fleet.attach(d, ublk.Null()); err != nil {
			return err
		}
		return b.fleet.start(ctx, d)
	})
	return list, err
}
