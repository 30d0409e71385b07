//go:build soak && linux

package soak

import (
	"context"
	"errors"
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
		what := [...]string{"worker", "worker", "all workers", "server", "server", "node plugin", "node plugin", "server and node plugin"}[rand.IntN(8)]
		switch what {
		case "worker":
			err = n.killWorkers(1)
		case "all workers":
			err = n.killWorkers(100)
		case "server and node plugin":
			// A plugin that waits for a disk of a server that is no more only dies once there is
			// another.
			pluginDead := make(chan error, 1)
			go func() { pluginDead <- n.plugin.kill() }()
			err = errors.Join(restart(n.server.kill, n.server.start), <-pluginDead, n.plugin.start())
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
		// Mostly what comes next meets a node that is up: on a slow machine it never would.
		if rand.IntN(4) != 0 {
			eventually(t, "the node to answer after the "+what+" was killed", n.answers)
		}
	}
}

func restart(kill, start func() error) error {
	if err := kill(); err != nil {
		return err
	}
	time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
	return start()
}

// killWorkers kills up to so many workers: of those that serve, and of those that stand by.
func (n *node) killWorkers(most int) error {
	workers, err := children(n.server.pid())
	if err != nil {
		return err
	}
	rand.Shuffle(len(workers), func(i, j int) { workers[i], workers[j] = workers[j], workers[i] })
	for _, pid := range workers[:min(most, len(workers))] {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			return err
		}
	}
	return nil
}

// spells makes a disk bad for some seconds of every few, until ctx ends.
func (n *node) spells(ctx context.Context, t *testing.T, d *disk) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(4+rand.IntN(12)) * time.Second):
		}
		if err := d.spell(ctx, time.Duration(1000+rand.IntN(3000))*time.Millisecond); err != nil {
			t.Error(err)
			return
		}
	}
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
