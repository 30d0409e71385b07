//go:build soak && linux

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// faults kills one of the three processes every few seconds until ctx ends, and
// leaves a node that answers.
func (n *node) faults(ctx context.Context, t *testing.T) (kills map[string]int) {
	kills = make(map[string]int)
	for {
		select {
		case <-ctx.Done():
			eventually(t, "the node to answer after the last fault", n.answers)
			return kills
		case <-time.After(time.Duration(1+rand.IntN(6)) * time.Second):
		}
		var err error
		what := [...]string{"worker", "worker", "server", "node plugin"}[rand.IntN(4)]
		switch what {
		case "worker":
			err = n.killWorker()
		case "server":
			err = restart(n.server.kill, n.server.start)
		case "node plugin":
			err = restart(n.plugin.kill, n.plugin.start)
		}
		if err != nil {
			t.Errorf("kill the %s: %v", what, err)
			return kills
		}
		kills[what]++
	}
}

func restart(kill, start func() error) error {
	if err := kill(); err != nil {
		return err
	}
	time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
	return start()
}

// killWorker kills any worker: the one that serves, or the one that stands by.
func (n *node) killWorker() error {
	workers, err := children(n.server.pid())
	if err != nil || len(workers) == 0 {
		return err // the server is just starting them
	}
	if err := syscall.Kill(workers[rand.IntN(len(workers))], syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return err
	}
	return nil
}

func children(of int) ([]int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", of))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that ended
		}
		for _, word := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}
