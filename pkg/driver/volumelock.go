package driver

import (
	"fmt"
	"sync"
)

// VolumeLocks lets one operation at a time touch a volume. Operations on
// different volumes never wait for each other, and nobody ever waits for the
// same one: the second caller is told who holds it. The zero value is ready.
type VolumeLocks struct {
	mu   sync.Mutex
	held map[string]string // volume id → operation
}

// TryAcquire takes the lock of volume id for operation op. When ok, release
// gives it back; calling release again does nothing. When not ok, holder names
// the operation in flight.
func (l *VolumeLocks) TryAcquire(id, op string) (release func(), holder string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if holder, taken := l.held[id]; taken {
		return nil, holder, false
	}
	if l.held == nil {
		l.held = make(map[string]string)
	}
	l.held[id] = op
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, id)
	}), "", true
}

// Acquire is TryAcquire for a CSI method: the error is a *BusyError.
func (l *VolumeLocks) Acquire(id, op string) (release func(), err error) {
	release, holder, ok := l.TryAcquire(id, op)
	if !ok {
		return nil, &BusyError{Volume: id, Op: op, Holder: holder}
	}
	return release, nil
}

// BusyError says that another operation on the same volume is in flight.
type BusyError struct {
	Volume string // id, or the name given to CreateVolume
	Op     string // the operation that was refused
	Holder string // the operation in flight
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%s of volume %q: %s of the same volume is in flight; retry when it is done", e.Op, e.Volume, e.Holder)
}
