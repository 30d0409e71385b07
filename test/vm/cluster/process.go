package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// process is a program of the control plane that runs in the cluster's namespace. It dies with this process.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // after done
}

// start starts the program; its output goes to NAME.log in dir.
func (n namespace) start(dir, name, program string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		defer log.Close()
		// The thread that starts a child is the parent that the death signal is about, so it stays until the child has ended.
		runtime.LockOSThread()
		err := n.enter()
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// alive is nil while the process runs, else an error with the tail of its log.
func (p *process) alive() error {
	select {
	case <-p.done:
		text, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s ended: %w%s", p.name, errors.Join(p.err), host.Indent(host.Tail(string(text), 10)))
	default:
		return nil
	}
}

// stop ends the process: asked to first if grace is not 0, killed then.
func (p *process) stop(grace time.Duration) {
	if grace > 0 {
		_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(grace):
		}
	}
	_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
	<-p.done
}
