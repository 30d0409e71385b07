package ublk

import (
	"errors"
	"strconv"
)

// ErrWedged marks a control command that neither completed by its deadline nor
// could be called back: a worker of the kernel is stuck in it. The command's
// memory stays reserved until the kernel answers, and the device must be taken
// for lost. It is always found together with context.DeadlineExceeded or
// context.Canceled in one error.
var ErrWedged = errors.New("the kernel does not answer")

// ErrBusy reports that something of this package is still in use: a device
// whose tags have not all been aborted, a ring that still serves a queue.
var ErrBusy = errors.New("still in use")

// ErrNotHeld reports that a device has gone on although it should have been held: nobody
// held it, or for longer than was agreed.
var ErrNotHeld = errors.New("not held")

// An OpError says which operation failed, and on which device.
//
// Err is the kernel's errno (a syscall.Errno; it matches fs.ErrNotExist,
// fs.ErrExist, fs.ErrPermission and errors.ErrUnsupported where it means
// that), or a context error for a command that ran out of time.
type OpError struct {
	// Op is the kernel's word for it, such as "ADD_DEV" or "open".
	Op string
	// Device is N of /dev/ublkbN, or -1 where no device is meant.
	Device int64
	Err    error
}

func (e *OpError) Error() string {
	if e.Device < 0 {
		return "ublk " + e.Op + ": " + e.Err.Error()
	}
	return "ublk " + e.Op + " dev " + strconv.FormatInt(e.Device, 10) + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *OpError) Unwrap() error { return e.Err }

// opError is nil for a nil err, so that call sites need no branch of their own.
func opError(op string, dev int64, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Device: dev, Err: err}
}
