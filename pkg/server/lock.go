package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockStateDir takes the state directory for this process, waiting for a server
// that is about to end. The lock goes with the descriptor, so however a server
// ends, it is free then; and two never answer for the same devices.
func lockStateDir(ctx context.Context, path string, patience time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: another server has it: %w", path, context.Cause(ctx))
		}
	}
}
