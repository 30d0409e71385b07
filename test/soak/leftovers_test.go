//go:build soak && linux

package soak

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// footprint is what the node holds without a volume.
type footprint struct {
	descriptors, goroutines map[string]int
	processes               int
	poolBytes               map[string]int64 // allocated
}

func (n *node) footprint() (footprint, error) {
	f := footprint{make(map[string]int), make(map[string]int), len(n.processes()), make(map[string]int64)}
	for _, pool := range pools {
		var err error
		if f.poolBytes[pool], err = allocated(n.path("pools/" + pool)); err != nil {
			return f, err
		}
	}
	for name, pid := range map[string]int{"server": n.server.pid(), "node plugin": n.plugin.pid()} {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return f, err
		}
		f.descriptors[name] = len(list)
	}
	workers, err := children(n.server.pid())
	if err != nil {
		return f, err
	}
	for _, pid := range workers {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return f, err
		}
		f.descriptors["workers"] += len(list)
	}
	for name, address := range map[string]string{"server": serverHTTP, "node plugin": nodeHTTP} {
		if f.goroutines[name], err = goroutines(address); err != nil {
			return f, err
		}
	}
	return f, nil
}

// processes lists those of the binary: server, workers and node plugin.
func (n *node) processes() (list []string) {
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		if to, err := os.Readlink(exe); err == nil && to == n.bin {
			list = append(list, filepath.Base(filepath.Dir(exe)))
		}
	}
	return list
}

// allocated is what the file system at dir has given out, when it has done what it does
// in the background.
func allocated(dir string) (int64, error) {
	f, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var st unix.Statfs_t
	if err := errors.Join(unix.Syncfs(int(f.Fd())), unix.Fstatfs(int(f.Fd()), &st)); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, nil
}

func goroutines(address string) (int, error) {
	r, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			return strconv.Atoi(text)
		}
	}
	return 0, fmt.Errorf("%s has no go_goroutines: %v", address, lines.Err())
}

// slack is what connections and timers may make of a difference, and slackBytes what the
// pools' own trees.
const (
	slack      = 12
	slackBytes = 16 << 20
)

// noVolumes waits until neither kernel nor pools nor server know of a volume.
func (n *node) noVolumes(t *testing.T) {
	t.Helper()
	eventually(t, "the kernel to have no device", func() error { return empty("/sys/class/ublk-char/*") })
	eventually(t, "every disk to be gone from /dev", func() error { return empty("/dev/ublkb*", "/dev/ublkc*") })
	eventually(t, "the pools and the journal to be empty", func() error {
		return empty(n.path("pools/*/volumes/*"), n.path("pools/*/trash/*"), n.path("pools/*/snapshots/*"), n.path("marks/*"), n.path("frozen/*"), n.path("server/journal/*/*.json"), n.path("formatting/*"))
	})
	if left, err := n.device.List(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("the server lists %v (%v)", left, err)
	}
}

// nothingLeft waits until there is no trace of any volume.
func (n *node) nothingLeft(t *testing.T, before footprint) {
	t.Helper()
	n.noVolumes(t)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, n.path("pods")) || strings.Contains(line, "ublkb") {
			t.Errorf("a mount is left: %s", line)
		}
	}
	eventually(t, "processes, descriptors, goroutines and the pools' bytes to be as many as before", func() error {
		after, err := n.footprint()
		if err != nil {
			return err
		}
		// A pool whose volumes are all gone may have no worker yet.
		if after.processes > before.processes {
			return fmt.Errorf("there are %d processes, %d before", after.processes, before.processes)
		}
		for pool, had := range before.poolBytes {
			if has := after.poolBytes[pool]; has > had+slackBytes {
				return fmt.Errorf("of pool %s %d bytes are allocated, %d before", pool, has, had)
			}
		}
		for name, had := range before.descriptors {
			if has := after.descriptors[name]; has > had+slack {
				return fmt.Errorf("the %s has %d descriptors, %d before", name, has, had)
			}
		}
		for name, had := range before.goroutines {
			if has := after.goroutines[name]; has > had+slack {
				return fmt.Errorf("the %s has %d goroutines, %d before", name, has, had)
			}
		}
		return nil
	})
}

func empty(patterns ...string) error {
	for _, p := range patterns {
		left, err := filepath.Glob(p)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("left are %s: %w", strings.Join(left, " "), fs.ErrExist)
		}
	}
	return nil
}
