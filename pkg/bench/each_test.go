package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

func TestEachRunsAllWithSoManyAtATime(t *testing.T) {
	var ran, now, most atomic.Int64
	err := each(t.Context(), 3, 20, func(context.Context, int) error {
		most.Store(max(most.Load(), now.Add(1)))
		time.Sleep(time.Millisecond)
		now.Add(-1)
		ran.Add(1)
		return nil
	})
	if err != nil || ran.Load() != 20 || most.Load() > 3 {
		t.Errorf("%v, %d ran, %d at a time", err, ran.Load(), most.Load())
	}
}

func TestEachBeginsNothingNewAfterAnError(t *testing.T) {
	fails := errors.New("fails")
	var ran atomic.Int64
	err := each(t.Context(), 1, 20, func(_ context.Context, i int) error {
		ran.Add(1)
		if i == 4 {
			return fails
		}
		return nil
	})
	if !errors.Is(err, fails) || ran.Load() != 5 {
		t.Errorf("%v, %d ran", err, ran.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := each(ctx, 1, 20, func(context.Context, int) error { return fails }); !errors.Is(err, context.Canceled) {
		t.Errorf("a run that was cancelled before: %v", err)
	}
}
