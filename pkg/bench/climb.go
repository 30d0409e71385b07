package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// The tables growth and idle share the expensive part: a device server that is
// given more and more devices nobody uses. At each level it is looked at (idle),
// or others come and go beside them (growth).

func (b *bench) climb(ctx context.Context, _ int) (err error) {
	var others, idle []int
	if b.wants(TableGrowth) {
		others = b.o.Others
	}
	if b.wants(TableIdle) {
		idle = b.o.Idle
	}
	levels := append(slices.Clone(others), idle...)
	slices.Sort(levels)
	levels = slices.Compact(levels)
	s, err := b.startStation(ctx, levels[len(levels)-1]+b.o.Volumes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.blanks(b.o.Volumes, volumeBytes); err != nil {
		return err
	}
	// The first wave costs what the next ones don't: threads, buffers, heap.
	if err := b.upAndDown(ctx, s, b.o.Volumes); err != nil {
		return err
	}
	if err := s.settled(ctx, 0); err != nil {
		return err
	}
	before, err := takeFootprint(s.server.Process.Pid)
	if err != nil {
		return err
	}
	up := 0
	for _, n := range levels {
		b.say("growth and idle: %d devices", n)
		if err := b.attachIdle(ctx, s, up, n); err != nil {
			return fmt.Errorf("attach devices %d to %d: %w", up, n, err)
		}
		up = n
		if slices.Contains(idle, n) {
			now, err := takeFootprint(s.server.Process.Pid)
			if err != nil {
				return err
			}
			b.addIdle(before, now, n)
		}
		if slices.Contains(others, n) {
			if err := b.growth(ctx, s, n); err != nil {
				return fmt.Errorf("beside %d others: %w", n, err)
			}
		}
	}
	return nil
}

func (b *bench) attachIdle(ctx context.Context, s *station, from, to int) error {
	return each(ctx, 32, to-from, func(ctx context.Context, i int) error {
		id := volumeID("idle", from+i)
		if err := s.blank(id, volumeBytes); err != nil {
			return err
		}
		_, err := s.attach(ctx, id)
		return err
	})
}
