package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// keepArgs is the command line of a keeper, below the command "cluster".
func (s Spec) keepArgs() []string {
	args := []string{
		"keep", "--name", s.Name, "--nodes", strconv.Itoa(s.Nodes), "--kernel", string(s.Kernel), "--accel", s.Accel,
		"--memory", strconv.Itoa(s.NodeMemoryMiB), "--repo", s.Repo,
	}
	for _, i := range s.Images {
		args = append(args, "--image", i)
	}
	return args
}

// Launch starts a cluster that stays up when this process ends: a process of its own keeps it. It returns when all nodes are
// Ready; progress goes to the host's output. If ctx ends before, the cluster is taken down again.
func Launch(ctx context.Context, h *host.Host, s Spec) (*Kept, error) {
	s = s.withDefaults()
	if err := s.validate(); err != nil {
		return nil, err
	}
	if pid := owner(h, s.Name); pid != 0 {
		return nil, fmt.Errorf("cluster %s is already up (process %d): take it down first, or use another name", s.Name, pid)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	logDir := filepath.Join(h.Cache, "log")
	if err := os.MkdirAll(logDir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(logDir, "cluster-"+s.Name+".log"), os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(self, append([]string{"cluster"}, s.keepArgs()...)...)
	cmd.Dir = s.Repo
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own: the terminal's Ctrl-C and its end are not for the keeper.
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return follow(ctx, h, s, log.Name(), cmd.Process.Pid, ended)
}

// follow shows the keeper's log until the cluster is there.
func follow(ctx context.Context, h *host.Host, s Spec, log string, pid int, ended <-chan error) (*Kept, error) {
	in, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	show := func() {
		if h.Out != nil {
			_, _ = io.Copy(h.Out, in)
		}
	}
	for {
		show()
		if _, err := os.Stat(keeperSocket(stateDir(h, s.Name))); err == nil {
			if k, err := Open(ctx, h, s.Name); err == nil {
				return k, nil
			}
		}
		select {
		case err := <-ended:
			show()
			if err == nil {
				err = errors.New("its keeper ended")
			}
			return nil, fmt.Errorf("cluster %s did not start: %w (log: %s)", s.Name, err, log)
		case <-ctx.Done():
			_ = unix.Kill(pid, unix.SIGTERM)
			<-ended
			show()
			return nil, fmt.Errorf("interrupted; cluster %s was taken down: %w", s.Name, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
