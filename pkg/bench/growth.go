package bench

import (
	"context"
	"time"
)

// The table growth: whether the way up and down gets slower the more idle devices
// there are beside.

const (
	partEach       = "up and down, per device"
	growthInFlight = 16
	// growthRepeats takes the edge off single waves: ten percent is little.
	growthRepeats = 3
)

func (b *bench) growth(ctx context.Context, s *station, others int) error {
	var samples []float64
	for range growthRepeats {
		begin := time.Now()
		if err := b.upAndDown(ctx, s, b.o.Volumes); err != nil {
			return err
		}
		// Until the kernel is done too: what it still does would slow the next.
		if err := s.settled(ctx, others); err != nil {
			return err
		}
		samples = append(samples, float64(time.Since(begin).Microseconds())/1000/float64(b.o.Volumes))
	}
	b.report.add(Key{Table: TableGrowth, Part: partEach, Unit: "ms", Way: wayServer, Load: others}, samples...)
	return nil
}

func (b *bench) upAndDown(ctx context.Context, s *station, n int) error {
	err := each(ctx, growthInFlight, n, func(ctx context.Context, i int) error {
		_, err := s.attach(ctx, volumeID("v", i))
		return err
	})
	if err != nil {
		return err
	}
	return each(ctx, growthInFlight, n, func(ctx context.Context, i int) error {
		return s.client.Detach(ctx, volumeID("v", i))
	})
}
