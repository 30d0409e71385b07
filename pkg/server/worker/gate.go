package worker

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// gate carries out what concerns requests before they begin.
func (s *served) gate(r *request) error {
	switch r.op {
	case opResume:
		return s.device.Resume()
	case opLimit:
		s.device.SetLimits(r.limits)
		return nil
	}
	wait, atMost := time.Duration(r.waitMillis)*time.Millisecond, time.Duration(r.holdMillis)*time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	err := s.device.Hold(ctx, atMost)
	if errors.Is(err, context.DeadlineExceeded) {
		// The server knows only an errno again.
		err = fmt.Errorf("requests in flight did not end within %v: %w", wait, syscall.ETIMEDOUT)
	}
	return err
}
