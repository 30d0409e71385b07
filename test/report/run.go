package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// runTier executes a command and reads its standard output as `go test -json`.
// The stream is kept in dir/TIER.jsonl. A cancelled ctx interrupts the command,
// which gets a minute to clean up.
func runTier(ctx context.Context, dir, tier string, args []string, w io.Writer) (result, error) {
	// A result of an earlier run must not be taken for this one's.
	if err := os.RemoveAll(filepath.Join(dir, tier+".json")); err != nil {
		return result{}, err
	}
	raw, err := os.Create(filepath.Join(dir, tier+".jsonl"))
	if err != nil {
		return result{}, err
	}
	defer raw.Close()

	start := time.Now()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return result{}, err
	}
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	s := newStream(w)
	lines := bufio.NewReader(io.TeeReader(stdout, raw))
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.line(line)
		}
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	r := s.result()
	r.Seconds = time.Since(start).Seconds()
	if err != nil {
		r.Error = fmt.Sprintf("%s: %v", args[0], err)
	}
	return r, nil
}
