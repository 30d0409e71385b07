package capacity

import (
	"fmt"
	"syscall"
)

// Grow holds what a volume needs more to have toBytes, at the place where it is, until
// SetVolume shows that it has them or StopGrowing gives them up. It may be repeated,
// with any size. Whether the node takes new volumes does not matter: this one is there.
// The error is a *GrowthError, and nothing has changed then.
func (l *Ledger) Grow(v Volume, toBytes int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	has := v.Bytes
	if i := l.promises[v.Name].find(v.UID); i >= 0 {
		has = l.promises[v.Name][i].takes()
	}
	if more := toBytes - has; more > 0 {
		if err := l.canGrow(v, toBytes, more); err != nil {
			return err
		}
	}
	l.know(v, toBytes)
	return nil
}

// StopGrowing gives up what Grow held: the volume is as v says. What was seen last may
// be older than that, or newer.
func (l *Ledger) StopGrowing(v Volume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.promises[v.Name].find(v.UID) >= 0 {
		l.know(v, 0)
	}
}

// know records what a caller knows of a volume, ahead of the watch or not. It needs l.mu.
func (l *Ledger) know(v Volume, growing int64) {
	l.change(v.Name, func(p promise) promise {
		return append(p.without(v.UID), holding{uid: v.UID, place: v.Place, bytes: v.Bytes, growing: growing, generation: v.Generation})
	})
}

// canGrow needs l.mu.
func (l *Ledger) canGrow(v Volume, toBytes, more int64) error {
	e := &GrowthError{Place: v.Place, ToBytes: toBytes, MoreBytes: more}
	pool, why := l.pool(v.Place)
	if why != "" {
		e.Refusal = why
		return e
	}
	if e.FreeBytes = max(l.limit(pool)-l.promised[v.Place], 0); more <= e.FreeBytes {
		return nil
	}
	return e
}

// GrowthError says that a volume can't grow where it is. Without a Refusal it matches
// syscall.ERANGE: a smaller size might do.
type GrowthError struct {
	Place     Place
	ToBytes   int64
	MoreBytes int64 // of them, what the volume has not
	FreeBytes int64
	// Refusal says why the place takes nothing at all; "" means that it lacks room.
	Refusal string
}

func (e *GrowthError) Error() string {
	if e.Refusal != "" {
		return fmt.Sprintf("node %s can't grow the volume: %s", e.Place.Node, e.Refusal)
	}
	return fmt.Sprintf("pool %q of node %s has %d bytes free, and the volume needs %d more to have %d",
		e.Place.Pool, e.Place.Node, e.FreeBytes, e.MoreBytes, e.ToBytes)
}

// MostBytes is the size that the volume could have.
func (e *GrowthError) MostBytes() int64 { return e.ToBytes - e.MoreBytes + e.FreeBytes }

// Is makes a lack of room match syscall.ERANGE.
func (e *GrowthError) Is(target error) bool { return target == syscall.ERANGE && e.Refusal == "" }
