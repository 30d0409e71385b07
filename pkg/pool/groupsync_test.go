package pool

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestCallersShareASyncThatBeganAfterThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		var mu sync.Mutex
		var began []time.Time
		g := &groupSync{sync: func() error {
			mu.Lock()
			began = append(began, time.Now())
			second := len(began) == 2
			mu.Unlock()
			time.Sleep(time.Second)
			if second {
				return boom
			}
			return nil
		}}
		start := time.Now()
		var wg sync.WaitGroup
		call := func(after time.Duration, round int, want error) {
			wg.Go(func() {
				time.Sleep(after)
				called := time.Now()
				if err := g.Sync(); !errors.Is(err, want) {
					t.Errorf("called after %v: %v, want %v", after, err, want)
				}
				if took := time.Since(start); took != time.Duration(round)*time.Second {
					t.Errorf("called after %v, done after %v", after, took)
				}
				mu.Lock()
				defer mu.Unlock()
				if began[round-1].Before(called) {
					t.Errorf("called after %v: served by a sync that began before", after)
				}
			})
		}
		call(0, 1, nil)
		for n := range 100 {
			call(time.Duration(1+n)*time.Millisecond, 2, boom)
		}
		call(1500*time.Millisecond, 3, nil)
		wg.Wait()
		if len(began) != 3 {
			t.Errorf("%d syncs for 102 callers, want 3", len(began))
		}
	})
}
