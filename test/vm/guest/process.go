package guest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// process is a guest's process tree on the host.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of Wait; set before ended is closed
}

// startProcess starts the guest's process so that nothing of it can outlive this process: it is told to die with the thread
// that started it, and as root it is the first of a process name space, which takes all the others with it. It starts in the
// network name space at that path ("": this one).
func startProcess(argv, env []string, netns string, console io.Writer, line *os.File) (*process, error) {
	p := &process{ended: make(chan struct{})}
	started := make(chan error)
	// One goroutine keeps the thread for the guest's whole life; it ends with the thread, whose name space may be changed.
	go func() {
		runtime.LockOSThread()
		err := p.start(argv, env, netns, console, line)
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) start(argv, env []string, netns string, console io.Writer, line *os.File) error {
	if netns != "" {
		f, err := os.Open(netns)
		if err != nil {
			return fmt.Errorf("open network name space: %w", err)
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network name space %s: %w", netns, err)
		}
	}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = console, console
	p.cmd.ExtraFiles = []*os.File{line}
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
	if os.Geteuid() == 0 {
		p.cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	// A guest that gives up aborts; its core would be as large as its memory.
	_ = unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	return nil
}

// signal sends to the whole tree; one that has ended takes no signals.
func (p *process) signal(sig unix.Signal) error {
	select {
	case <-p.ended:
		return nil
	default:
		return unix.Kill(-p.cmd.Process.Pid, sig)
	}
}
