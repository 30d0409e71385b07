package ublk

import (
	"errors"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// A ring needs io_uring but no driver.
func TestRingsStartAndEnd(t *testing.T) {
	defer goleak.VerifyNone(t)
	for range 3 {
		r, err := NewRing(RingOptions{Buffers: 4})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := r.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("closed twice: %v", err)
		}
		if err := r.attach(&ringQueue{}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("attached to a closed ring: %v", err)
		}
	}
}

func TestMissingDriverIsExplained(t *testing.T) {
	defer goleak.VerifyNone(t)
	_, err := OpenControl(ControlOptions{Path: "/dev/there-is-no-such-driver"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	// And what is no driver at all gives no Control either.
	if _, err := OpenControl(ControlOptions{Path: "/dev/null"}); err == nil {
		t.Error("/dev/null was taken for the driver")
	} else {
		t.Log(err)
	}
}
