package bench

import (
	"math"
	"sync"
	"time"
)

// A stopwatch takes the times of operations from many goroutines.
type stopwatch struct {
	mu    sync.Mutex
	parts []string // in the order of their first operation
	took  map[string][]float64
}

// timed notes how long f took, if it succeeded.
func (w *stopwatch) timed(part string, f func() error) error {
	begin := time.Now()
	if err := f(); err != nil {
		return err
	}
	w.add(part, time.Since(begin))
	return nil
}

func (w *stopwatch) add(part string, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.took == nil {
		w.took = make(map[string][]float64)
	}
	if w.took[part] == nil {
		w.parts = append(w.parts, part)
	}
	// Microseconds are finer than anything here; more digits only fill files.
	w.took[part] = append(w.took[part], math.Round(float64(d.Microseconds()))/1000)
}

// report adds what was taken as one round of series like k.
func (w *stopwatch) report(r *Report, k Key) {
	k.Unit, k.Each = "ms", true
	for _, p := range w.parts {
		k.Part = p
		r.add(k, w.took[p]...)
	}
}
