package ublk

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
)

func TestOpErrorSaysOperationAndDevice(t *testing.T) {
	for want, err := range map[string]error{
		"ublk START_DEV dev 3: device or resource busy": opError("START_DEV", 3, syscall.EBUSY),
		"ublk open: permission denied":                  opError("open", -1, syscall.EACCES),
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
	if opError("x", 1, nil) != nil {
		t.Error("no error became one")
	}
	err := fmt.Errorf("attach: %w", opError("ADD_DEV", -1, fmt.Errorf("%w: %w", ErrWedged, context.DeadlineExceeded)))
	if !errors.Is(err, ErrWedged) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error("the causes cannot be found")
	}
}
