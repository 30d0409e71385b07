package host

import (
	"fmt"
	"time"
)

// Say writes one progress line with the time of day.
func (h *Host) Say(format string, args ...any) {
	if h.Out != nil {
		fmt.Fprintf(h.Out, "[%s] %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
	}
}

// beat is how often a long step shows that it is alive.
const beat = 20 * time.Second

// Step runs do and shows its name with the usual duration before, the time spent every 20 seconds, and the total after. A step
// that ends within a second leaves only its first line, or nothing if usual is 0.
func (h *Host) Step(what string, usual time.Duration, do func() error) error {
	start := time.Now()
	about := ""
	if usual > 0 {
		about = fmt.Sprintf(" (usually %s)", usual)
		h.Say("%s%s", what, about)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		t := time.NewTicker(beat)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				h.Say("%s: %s so far%s", what, time.Since(start).Round(time.Second), about)
			}
		}
	}()
	err := do()
	close(stop)
	<-stopped
	spent := time.Since(start)
	switch {
	case err != nil:
		h.Say("%s: failed after %s", what, spent.Round(100*time.Millisecond))
		return fmt.Errorf("%s: %w", what, err)
	case spent > time.Second:
		h.Say("%s: done in %s", what, spent.Round(100*time.Millisecond))
	}
	return nil
}
