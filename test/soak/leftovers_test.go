//go:build soak && linux

package soak

import (
	"bufio"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// footprint is what processes hold.
type footprint struct {
	descriptors, goroutines map[string]int
}

func (n *node) footprint() (footprint, error) {
	f := footprint{make(map[string]int), make(map[string]int)}
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

// slack is what connections and timers may make of a difference.
const slack = 12

// nothingLeft waits until there is no trace of any volume.
func (n *node) nothingLeft(t *testing.T, before footprint) {
	t.Helper()
	eventually(t, "the kernel to have no device", func() error { return empty("/sys/class/ublk-char/*") })
	eventually(t, "every disk to be gone from /dev", func() error { return empty("/dev/ublkb*", "/dev/ublkc*") })
	eventually(t, "the pools and the journal to be empty", func() error {
		return empty(n.path("pools/*/volumes/*"), n.path("pools/*/trash/*"), n.path("server/journal/*/*.json"), n.path("formatting/*"))
	})
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, n.path("pods")) || strings.Contains(line, "ublkb") {
			t.Errorf("a mount is left: %s", line)
		}
	}
	eventually(t, "descriptors and goroutines to be as many as before", func() error {
		after, err := n.footprint()
		if err != nil {
			return err
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
	if left, err := n.device.List(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("the server lists %v (%v)", left, err)
	}
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
