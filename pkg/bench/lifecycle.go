package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// The table lifecycle: a volume's device up and down, by the device server's API
// and by a program that issues the same commands with no server, journal, worker
// or socket in between.

// Ways and parts of the table.
const (
	wayBare   = "bare"
	wayServer = "server"

	partUp       = "up"
	partDiskGone = "down: disk gone"
	partDown     = "down: number free"
	partUpRate   = "devices up"
	partDownRate = "devices down"
)

// volumeBytes is the size of volumes that nobody writes to.
const volumeBytes = 16 << 20

type lifecyclePoint struct {
	way      string
	inFlight int
}

func (b *bench) lifecycleRound(ctx context.Context, round int) (err error) {
	s, err := b.startStation(ctx, b.o.Volumes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.blanks(b.o.Volumes, volumeBytes); err != nil {
		return err
	}
	var points []lifecyclePoint
	for _, k := range b.o.InFlight {
		points = append(points, lifecyclePoint{wayBare, k}, lifecyclePoint{wayServer, k})
	}
	for _, p := range turns(points, round) {
		b.say("lifecycle: %s, %d in flight", p.way, p.inFlight)
		var l life = &bareLife{b.fleet, s, make([]*bare, b.o.Volumes)}
		if p.way == wayServer {
			l = &serverLife{b.fleet, s, make([]uint32, b.o.Volumes)}
		}
		if err := b.live(ctx, p, l); err != nil {
			return fmt.Errorf("%s, %d in flight: %w", p.way, p.inFlight, err)
		}
		if err := s.settled(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

// A life is one way of bringing volume i's device up and down. The stopwatch gets
// the parts that it knows of.
type life interface {
	up(ctx context.Context, i int, w *stopwatch) error
	// down returns when the disk is gone, free when the number is.
	down(ctx context.Context, i int, w *stopwatch) error
	free(ctx context.Context, i int, w *stopwatch) error
}

// live brings all up, then all down, with so many in flight.
func (b *bench) live(ctx context.Context, p lifecyclePoint, l life) error {
	w := &stopwatch{}
	begin := time.Now()
	err := each(ctx, p.inFlight, b.o.Volumes, func(ctx context.Context, i int) error {
		return w.timed(partUp, func() error { return l.up(ctx, i, w) })
	})
	if err != nil {
		return err
	}
	up := time.Since(begin)
	begin = time.Now()
	err = each(ctx, p.inFlight, b.o.Volumes, func(ctx context.Context, i int) error {
		return w.timed(partDown, func() error {
			if err := w.timed(partDiskGone, func() error { return l.down(ctx, i, w) }); err != nil {
				return err
			}
			return l.free(ctx, i, w)
		})
	})
	if err != nil {
		return err
	}
	down := time.Since(begin)
	w.report(b.report, Key{Table: TableLifecycle, Way: p.way, Load: p.inFlight})
	rate := func(part string, took time.Duration) {
		b.report.add(Key{Table: TableLifecycle, Part: part, Unit: "/s", Way: p.way, Load: p.inFlight}, float64(b.o.Volumes)/took.Seconds())
	}
	rate(partUpRate, up)
	rate(partDownRate, down)
	return nil
}

// serverLife is the way of the node plugin.
type serverLife struct {
	fleet *fleet // only to ask the kernel
	s     *station
	ids   []uint32
}

func (l *serverLife) up(ctx context.Context, i int, _ *stopwatch) error {
	d, err := l.s.attach(ctx, volumeID("v", i))
	l.ids[i] = d.DeviceID
	return err
}

func (l *serverLife) down(ctx context.Context, i int, _ *stopwatch) error {
	return l.s.client.Detach(ctx, volumeID("v", i))
}

func (l *serverLife) free(ctx context.Context, i int, _ *stopwatch) error {
	return l.fleet.released(ctx, l.ids[i])
}

// bareLife issues the server's commands.
type bareLife struct {
	fleet *fleet
	s     *station
	list  []*bare
}

func (l *bareLife) up(ctx context.Context, i int, w *stopwatch) error {
	begin := time.Now()
	file, err := os.OpenFile(l.s.path(volumeID("v", i)), os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	info, err := ublk.ProbeFile(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	opened := time.Since(begin)
	features := ublk.UserRecovery | ublk.UserRecoveryReissue | l.fleet.control.Features()&(ublk.NoAutoPartScan|ublk.Quiesce|ublk.SafeStop)
	var d *bare
	err = w.timed("ADD", func() (err error) {
		d, err = l.fleet.add(ctx, features, info.Params())
		return err
	})
	if d == nil {
		return errors.Join(err, file.Close())
	}
	d.file, l.list[i] = file, d
	if err != nil {
		return err
	}
	begin = time.Now()
	target, err := ublk.File(file, ublk.FileOptions{Info: &info})
	if err != nil {
		return err
	}
	if err := l.fleet.attach(d, target); err != nil {
		return err
	}
	w.add("attach (open, mmap, FETCH)", opened+time.Since(begin))
	return w.timed("START", func() error { return l.fleet.start(ctx, d) })
}

func (l *bareLife) down(ctx context.Context, i int, w *stopwatch) error {
	return w.timed(partStop, func() error {
		if !l.fleet.control.Features().Has(ublk.SafeStop) {
			return l.fleet.stop(ctx, l.list[i])
		}
		err := l.fleet.control.TryStop(ctx, l.list[i].info.ID)
		if errors.Is(err, syscall.EBUSY) { // something on this machine looks at every new disk
			err = l.fleet.stop(ctx, l.list[i])
		}
		return err
	})
}

func (l *bareLife) free(ctx context.Context, i int, w *stopwatch) error {
	return w.timed(partDelete, func() error {
		if err := l.fleet.deleteOpen(ctx, l.list[i]); err != nil {
			return err
		}
		return l.fleet.gone(ctx, l.list[i])
	})
}
