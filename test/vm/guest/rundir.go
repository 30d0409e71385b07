package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// RunDir is a directory for one run's files. It is locked for its life, so that one whose process was killed is known as such.
type RunDir struct {
	Path string
	lock *os.File
}

// NewRunDir makes a run directory in the cache and removes those that killed runs left there.
func NewRunDir(h *host.Host, name string) (*RunDir, error) {
	if _, _, err := Sweep(h); err != nil {
		return nil, err
	}
	runs := filepath.Join(h.Cache, "run")
	if err := os.MkdirAll(runs, 0o755); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	path, err := os.MkdirTemp(runs, name+".")
	if err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	lock, err := os.Open(path)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock run directory: %w", err), os.RemoveAll(path))
	}
	return &RunDir{path, lock}, nil
}

// Remove removes the directory.
func (d *RunDir) Remove() error {
	return errors.Join(os.RemoveAll(d.Path), d.lock.Close())
}

// youngest is the age below which a directory may be between its making and its locking.
const youngest = 10 * time.Second

// Sweep removes the run directories that no process holds.
func Sweep(h *host.Host) (removed, busy int, err error) {
	dirs, err := filepath.Glob(filepath.Join(h.Cache, "run", "*"))
	if err != nil {
		return 0, 0, err
	}
	for _, dir := range dirs {
		f, err := os.Open(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return removed, busy, fmt.Errorf("sweep run directories: %w", err)
		}
		st, err := f.Stat()
		if err != nil || time.Since(st.ModTime()) < youngest || unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			busy++
		} else if err := os.RemoveAll(dir); err != nil {
			f.Close()
			return removed, busy, fmt.Errorf("sweep run directories: %w", err)
		} else {
			removed++
		}
		f.Close()
	}
	return removed, busy, nil
}
