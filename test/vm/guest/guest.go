package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/guest/wire"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// ErrPanic is the end of a guest whose kernel gave up, ErrHung that of one that stopped answering, and ErrKilled that of one
// that Kill, Close or the end of its context stopped.
var (
	ErrPanic  = errors.New("guest kernel panic")
	ErrHung   = errors.New("guest hangs")
	ErrKilled = errors.New("guest killed")
)

// Guest is a running virtual machine. All methods may be called from several goroutines.
type Guest struct {
	spec    Spec
	dir     string
	ownDir  *RunDir // nil: the caller's
	proc    *process
	console *console
	log     *os.File
	line    *os.File
	session *session
	cpu     io.Closer // claim on a CPU; nil without

	done   chan struct{} // closed when the process has ended and err is set
	mu     sync.Mutex
	reason error // why it was ended from here
	asked  bool  // PowerOff was sent
	paused bool
	err    error
	wait   sync.WaitGroup
}

// Start boots a guest and returns when it takes commands, or an error that carries the console's tail. ctx bounds the boot and
// the guest's life: the guest dies when ctx ends, with Close, and with this process, however that ends.
func Start(ctx context.Context, h *host.Host, s Spec) (*Guest, error) {
	s = s.withDefaults()
	m, err := machineOf(s.Accel)
	if err != nil {
		return nil, err
	}
	g := &Guest{spec: s, dir: s.Dir, done: make(chan struct{})}
	if g.dir == "" {
		if g.ownDir, err = NewRunDir(h, s.Name); err != nil {
			return nil, fmt.Errorf("guest %s: %w", s.Name, err)
		}
		g.dir = g.ownDir.Path
	}
	if err := g.launch(ctx, h, m); err != nil {
		g.removeFiles()
		return nil, fmt.Errorf("start guest %s: %w", s.Name, err)
	}
	if err := g.greet(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start guest %s: %w", s.Name, err), g.Close())
	}
	return g, nil
}

// launch starts the process and the goroutines that look after it.
func (g *Guest) launch(ctx context.Context, h *host.Host, m machine) error {
	s := g.spec
	if err := os.MkdirAll(g.dir, 0o755); err != nil {
		return err
	}
	if err := h.Need(ctx, s.Accel.Tools()...); err != nil {
		return err
	}
	if err := m.prepare(ctx, s, g.dir); err != nil {
		return fmt.Errorf("disks: %w", err)
	}
	initrd := filepath.Join(g.dir, "initrd")
	if err := writeInitrd(ctx, h, initrd, s.Kernel, m.preload(s), g.config(m)); err != nil {
		return fmt.Errorf("initial file system: %w", err)
	}
	var err error
	if g.log, err = os.OpenFile(filepath.Join(g.dir, "console.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	g.console = newConsole(g.log, s.Console)
	theirs, err := g.openLine()
	if err != nil {
		g.log.Close()
		return err
	}
	defer theirs.Close()
	args := append([]string{"panic=-1", "quiet", "loglevel=5"}, s.Cmdline...)
	argv, env := m.command(s, g.dir, initrd, args)
	if s.Accel == AccelUML {
		if argv, g.cpu, err = pinned(argv); err != nil {
			g.line.Close()
			g.log.Close()
			return err
		}
	}
	netns := ""
	if s.Net != nil {
		netns = s.Net.Namespace
	}
	if g.proc, err = startProcess(argv, env, netns, g.console, theirs); err != nil {
		g.giveBackCPU()
		g.line.Close()
		g.log.Close()
		return err
	}
	g.session = newSession(g.line)
	g.wait.Go(func() { _ = g.session.receive() }) // It ends with the line, the reason is the process's to tell.
	g.wait.Go(func() { g.watch(ctx) })
	return nil
}

func (g *Guest) giveBackCPU() {
	if g.cpu != nil {
		g.cpu.Close()
	}
}

// openLine makes the agent's line; theirs is the guest's end.
func (g *Guest) openLine() (theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("agent's line: %w", err)
	}
	// Only our end: QEMU and User Mode Linux set theirs as they need it.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, fmt.Errorf("agent's line: %w", err)
	}
	g.line = os.NewFile(uintptr(fds[0]), "agent")
	return os.NewFile(uintptr(fds[1]), "agent"), nil
}

func (g *Guest) config(m machine) wire.Config {
	s := g.spec
	c := wire.Config{Name: s.Name, Modules: s.Modules, Boot: s.Boot}
	if !s.NoUblk {
		c.Modules = append([]string{"ublk_drv"}, c.Modules...)
	}
	if n := s.Net; n != nil {
		c.Net = &wire.Net{MAC: n.MAC, Address: n.Address, Gateway: n.Gateway}
	}
	m.config(s, &c)
	return c
}

// panicTrace is how long a kernel that gave up may still write to its console.
const panicTrace = 2 * time.Second

// watch waits for the guest's end and ends it with ctx.
func (g *Guest) watch(ctx context.Context) {
	select {
	case <-g.proc.ended:
	case <-g.console.onPanic:
		// The machine is told to end at a panic, but not every way there works as the first of a process name space.
		select {
		case <-g.proc.ended:
		case <-time.After(panicTrace):
		}
		_ = g.proc.signal(unix.SIGKILL)
		<-g.proc.ended
	case <-ctx.Done():
		g.end(fmt.Errorf("%w: %w", ErrKilled, ctx.Err()))
		<-g.proc.ended
	}
	g.giveBackCPU()
	g.line.Close()
	g.session.end()
	g.mu.Lock()
	defer g.mu.Unlock()
	panicked := g.console.panicked()
	switch {
	case g.reason != nil:
		g.err = g.reason
	case panicked != "":
		g.err = fmt.Errorf("%w: %s", ErrPanic, panicked)
	case !g.asked:
		g.err = fmt.Errorf("guest ended by itself (%v)", g.proc.cmd.ProcessState)
	}
	g.log.Close()
	close(g.done)
}

// greet waits until the agent takes commands.
func (g *Guest) greet(ctx context.Context) error {
	select {
	case hello := <-g.session.hello:
		if hello.Error != "" {
			return fmt.Errorf("setup in the guest: %s\nconsole:%s", hello.Error, host.Indent(g.console.tail(30)))
		}
	case <-g.done:
		return g.endError()
	case <-time.After(g.spec.BootLimit):
		g.end(fmt.Errorf("%w: takes no commands after %s", ErrHung, g.spec.BootLimit))
		<-g.done
		return g.endError()
	}
	limit := g.spec.SilentAfter
	g.wait.Go(func() {
		g.session.ping(limit/30, limit, g.done, func() { g.silent(limit) })
	})
	return nil
}

// silent ends a guest whose agent does not answer; one that is paused is meant to be silent.
func (g *Guest) silent(limit time.Duration) {
	g.mu.Lock()
	paused := g.paused
	g.mu.Unlock()
	if !paused {
		g.end(fmt.Errorf("%w: no answer for %s", ErrHung, limit))
	}
}

// end kills the process tree and keeps the first reason.
func (g *Guest) end(reason error) {
	g.mu.Lock()
	if g.reason == nil {
		g.reason = reason
	}
	g.mu.Unlock()
	_ = g.proc.signal(unix.SIGKILL)
}

// endError describes an ended guest with its console's tail.
func (g *Guest) endError() error {
	err := g.Err()
	if err == nil {
		err = errors.New("guest is off")
	}
	return fmt.Errorf("guest %s: %w\nconsole:%s", g.spec.Name, err, host.Indent(g.console.tail(40)))
}

// Shell runs a script with bash and returns its output, stdout and stderr together. A status other than 0 is an error that
// carries the output.
func (g *Guest) Shell(ctx context.Context, script string) (string, error) {
	var out bytes.Buffer
	status, err := g.Run(ctx, Cmd{Args: []string{"bash", "-c", script}, Stdout: &out, Stderr: &out})
	switch {
	case err != nil:
		return out.String(), fmt.Errorf("%w%s", err, host.Indent(out.String()))
	case status != 0:
		return out.String(), fmt.Errorf("guest %s: script ended with status %d%s", g.spec.Name, status, host.Indent(out.String()))
	}
	return out.String(), nil
}

// Dir is where the guest's disks and console log are.
func (g *Guest) Dir() string { return g.dir }

// Console returns the last lines of the console.
func (g *Guest) Console(lines int) string { return g.console.tail(lines) }

// Complaints returns the console's lines about bugs, warnings, stalls and hanging tasks.
func (g *Guest) Complaints() []string { return g.console.complaints() }

// Done is closed when the guest has ended; Err then says why.
func (g *Guest) Done() <-chan struct{} { return g.done }

// Err says why the guest ended; nil while it runs and after PowerOff.
func (g *Guest) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Blocked has the guest's kernel write the stacks of its blocked tasks to the console.
func (g *Guest) Blocked() { g.session.post(wire.Frame{Kind: wire.Blocked}) }

// Kill ends the guest like a power cut and waits for its end: what it did not write to its disks is lost. Start with the same
// Dir boots it again.
func (g *Guest) Kill() error {
	g.end(ErrKilled)
	<-g.done
	return nil
}

// Pause stops the guest, as a hang of the whole machine would; Resume lets it go on.
func (g *Guest) Pause() error {
	g.setPaused(true)
	return g.proc.signal(unix.SIGSTOP)
}

// Resume undoes Pause.
func (g *Guest) Resume() error {
	g.session.last.Store(time.Now().UnixNano())
	g.setPaused(false)
	return g.proc.signal(unix.SIGCONT)
}

func (g *Guest) setPaused(p bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = p
}

// PowerOff syncs the disks and ends the guest; after the time limit it is killed.
func (g *Guest) PowerOff(limit time.Duration) error {
	g.mu.Lock()
	g.asked = true
	g.mu.Unlock()
	g.session.post(wire.Frame{Kind: wire.PowerOff})
	select {
	case <-g.done:
		return g.Err()
	case <-time.After(limit):
		g.end(fmt.Errorf("%w: not off after %s", ErrHung, limit))
		<-g.done
		return g.endError()
	}
}

// Close kills the guest if it still runs, waits for all that watched it, and removes what Start made (not a Dir that the
// caller gave). It is idempotent.
func (g *Guest) Close() error {
	g.end(ErrKilled)
	<-g.done
	g.wait.Wait()
	return g.removeFiles()
}

func (g *Guest) removeFiles() error {
	if g.ownDir != nil {
		return g.ownDir.Remove()
	}
	return errors.Join(os.RemoveAll(filepath.Join(g.dir, "uml")), os.RemoveAll(filepath.Join(g.dir, "initrd")))
}
