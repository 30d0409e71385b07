package host

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Command is a program of the host that the rig runs to its end.
type Command struct {
	Args []string
	Dir  string   // working directory; "" means this process's
	Env  []string // added to this process's environment
	// Nice lowers the priority, for builds that would starve the machine.
	Nice bool
	// Contained runs it in a process name space of its own (as root), so that nothing of a tree of processes outlives this
	// process, even if that is killed. Not for programs that look at /proc.
	Contained bool
}

// Run runs the command in a process group of its own, which is killed as a whole when ctx ends or this process dies, and
// returns its standard output. An error carries the tail of what it wrote.
func Run(ctx context.Context, c Command) (string, error) {
	args := c.Args
	if c.Nice {
		args = append([]string{"nice", "-n", "5"}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), c.Env...)
	var stdout, both bytes.Buffer
	cmd.Stdout = io.MultiWriter(&stdout, &both)
	cmd.Stderr = &both
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if c.Contained && os.Geteuid() == 0 {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
	}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	// The parent-death signal comes when the thread that forked ends, so that thread must stay until the program has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return stdout.String(), fmt.Errorf("%s: %w%s", filepath.Base(c.Args[0]), err, Indent(Tail(both.String(), 25)))
	}
	return stdout.String(), nil
}

// Tail returns the last lines of s.
func Tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}

// Indent puts s on lines of its own below an error's text; an empty s stays empty.
func Indent(s string) string {
	if s == "" {
		return ""
	}
	return "\n    " + strings.ReplaceAll(s, "\n", "\n    ")
}
