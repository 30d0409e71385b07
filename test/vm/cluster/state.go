package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// stateDir is where a cluster's files are while it runs.
func stateDir(h *host.Host, name string) string { return filepath.Join(h.Cache, "cluster", name) }

func namespaceOf(name string) namespace { return namespace("csi-ublk-" + name) }

// ownerFile is locked by the process that runs the cluster, and has its number. It lies beside the state, which comes and goes.
func ownerFile(h *host.Host, name string) string { return stateDir(h, name) + ".owner" }

// own makes this process the one that runs the cluster of that name, and removes what a dead one left.
func own(ctx context.Context, h *host.Host, name string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(ownerFile(h, name)), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(ownerFile(h, name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("cluster %s is already up (process %d): take it down first, or use another name", name, owner(h, name))
		}
		return nil, fmt.Errorf("lock cluster %s: %w", name, err)
	}
	unlock = func() { _ = f.Truncate(0); f.Close() }
	if err := sweep(h, name); err != nil {
		unlock()
		return nil, err
	}
	if err := errors.Join(f.Truncate(0), os.MkdirAll(stateDir(h, name), 0o755)); err != nil {
		unlock()
		return nil, err
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		unlock()
		return nil, err
	}
	return unlock, ctx.Err()
}

// owner is the number of the process that runs the cluster, 0 if none does.
func owner(h *host.Host, name string) int {
	f, err := os.OpenFile(ownerFile(h, name), os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0 // Nobody holds it; what is written in it is of a dead one.
	}
	text := make([]byte, 16)
	n, _ := f.ReadAt(text, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	return pid
}

// sweep removes the namespace, with everything that runs in it, and the state of the cluster.
func sweep(h *host.Host, name string) error {
	err := namespaceOf(name).remove()
	return errors.Join(err, os.RemoveAll(stateDir(h, name)))
}

// Remove takes the cluster of that name down, whoever runs it, and removes what a killed one left behind. That there is none is
// no error.
func Remove(ctx context.Context, h *host.Host, name string) error {
	if pid := owner(h, name); pid != 0 && pid != os.Getpid() {
		_ = unix.Kill(pid, unix.SIGTERM)
		for deadline := time.Now().Add(30 * time.Second); owner(h, name) == pid; {
			if time.Now().After(deadline) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("take cluster %s down: %w", name, ctx.Err())
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	unlock, err := own(ctx, h, name)
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(sweep(h, name), os.Remove(ownerFile(h, name)))
}

// Names lists the clusters that run or that left something behind.
func Names(h *host.Host) []string {
	entries, _ := os.ReadDir(filepath.Join(h.Cache, "cluster"))
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}
