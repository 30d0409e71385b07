//go:build sanity

package sanity

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// role is a running process of the driver.
type role struct {
	name string
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
	err  error
}

// startRole runs a program in a process group of its own, with its log in dir.
func startRole(dir, name string, args ...string) (*role, error) {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	r := &role{name: name, cmd: exec.Command(args[0], args[1:]...), log: log, done: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(r.done)
		r.err = r.cmd.Wait()
	}()
	return r, nil
}

// ready waits until a URL answers 200.
func (r *role) ready(url string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		resp, err := http.Get(url)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("status %s", resp.Status)
		}
		select {
		case <-r.done:
			return fmt.Errorf("%s ended: %v; its log:\n%s", r.name, r.err, r.tail())
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %s: %w; its log:\n%s", r.name, limit, err, r.tail())
		}
	}
}

// stop ends the role in order, and its whole group if that takes too long.
func (r *role) stop() error {
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	var err error
	select {
	case <-r.done:
	case <-time.After(30 * time.Second):
		err = fmt.Errorf("%s does not end; its log:\n%s", r.name, r.tail())
	}
	_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL)
	<-r.done
	return errors.Join(err, r.log.Close())
}

// tail is the end of the role's log.
func (r *role) tail() string {
	text, err := os.ReadFile(r.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-60):], nil))
}
