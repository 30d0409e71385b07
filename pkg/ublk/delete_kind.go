package ublk

// DeleteKind says what other commands wait for while a kernel deletes a device.
type DeleteKind int

// The kinds of kernels, as ProbeDeleteKind tells them apart.
const (
	DeleteUnknown DeleteKind = iota
	// DeleteNoWait: deleting does not wait for a grace period at all.
	DeleteNoWait
	// DeleteLocked: it waits, and holds the driver's global mutex meanwhile:
	// deletions queue up behind one another.
	DeleteLocked
	// DeleteUnlocked: it waits, but not under the mutex: deletions scale.
	DeleteUnlocked
)

func (k DeleteKind) String() string {
	switch k {
	case DeleteNoWait:
		return "NOWAIT"
	case DeleteLocked:
		return "LOCKED"
	case DeleteUnlocked:
		return "UNLOCKED"
	}
	return "UNKNOWN"
}
