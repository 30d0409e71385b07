package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/csi-ublk/csi-ublk/test/vm/guest/wire"
)

// server runs the rig's commands. All of its state is keyed by the rig's command numbers.
type server struct {
	conn *wire.Conn
	mu   sync.Mutex
	runs map[uint32]*running
}

// running is one command.
type running struct {
	pid   int // also its process group; 0 until it runs
	stdin *queue
}

// serve greets the rig and does what it says until the line ends or it says PowerOff.
func serve() error {
	setup := os.Getenv(setupError)
	c, err := readConfig(configFile)
	if err != nil {
		// Without the configuration the line's name is unknown; the console is all there is.
		return fmt.Errorf("%w (setup: %s)", err, setup)
	}
	line, err := openLine(c.Line)
	if err != nil {
		return err
	}
	s := &server{conn: wire.NewAgentConn(line), runs: map[uint32]*running{}}
	if err := s.conn.SendJSON(wire.Hello, 0, greeting(setup)); err != nil {
		return err
	}
	for {
		f, err := s.conn.Receive()
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if f.Kind == wire.PowerOff {
			return nil
		}
		if err := s.handle(f); err != nil {
			return fmt.Errorf("frame %c: %w", f.Kind, err)
		}
	}
}

func (s *server) handle(f wire.Frame) error {
	switch f.Kind {
	case wire.Ping:
		return s.conn.Send(wire.Frame{Kind: wire.Pong, ID: f.ID})
	case wire.Blocked:
		return os.WriteFile("/proc/sysrq-trigger", []byte("w"), 0)
	case wire.Start:
		var c wire.Command
		if err := json.Unmarshal(f.Data, &c); err != nil {
			return err
		}
		r := &running{stdin: newQueue()}
		s.mu.Lock()
		s.runs[f.ID] = r
		s.mu.Unlock()
		go s.run(f.ID, r, c)
	case wire.Stdin:
		if r := s.lookup(f.ID); r != nil {
			r.stdin.put(f.Data)
		}
	case wire.Kill:
		s.mu.Lock()
		defer s.mu.Unlock()
		if r := s.runs[f.ID]; r != nil && r.pid != 0 {
			_ = syscall.Kill(-r.pid, syscall.SIGKILL)
		}
	}
	return nil
}

func (s *server) lookup(id uint32) *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

// run runs one command from start to its Exit frame.
func (s *server) run(id uint32, r *running, c wire.Command) {
	result := s.execute(id, r, c)
	s.mu.Lock()
	delete(s.runs, id)
	s.mu.Unlock()
	_ = s.conn.SendJSON(wire.Exit, id, result) // A broken line ends serve, which has nobody else to tell.
}

func (s *server) execute(id uint32, r *running, c wire.Command) wire.Result {
	path, err := lookPath(c.Args[0])
	if err != nil {
		return wire.Result{Status: 127, Error: err.Error()}
	}
	cmd := &exec.Cmd{Path: path, Args: c.Args, Dir: c.Dir, Env: append(append([]string{}, environment...), c.Env...)}
	if cmd.Dir == "" {
		cmd.Dir = "/root"
	}
	cmd.Stdout = output{s.conn, wire.Stdout, id}
	cmd.Stderr = output{s.conn, wire.Stderr, id}
	// A file of our own for input: with a reader, Wait would wait for an input that nobody ends.
	in, feed, err := os.Pipe()
	if err != nil {
		return wire.Result{Status: 126, Error: err.Error()}
	}
	cmd.Stdin = in
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A test that panics leaves the processes it started behind, with its output
	// open; the guest's end ends them.
	cmd.WaitDelay = waitDelay
	err = cmd.Start()
	in.Close()
	if err != nil {
		feed.Close()
		return wire.Result{Status: 126, Error: err.Error()}
	}
	s.mu.Lock()
	r.pid = cmd.Process.Pid
	s.mu.Unlock()
	go r.stdin.copyTo(feed)
	err = cmd.Wait()
	r.stdin.put(nil)
	return resultOf(err, cmd.ProcessState)
}

// waitDelay is how long the output of a program that has ended is waited for.
const waitDelay = 10 * time.Second

func resultOf(err error, st *os.ProcessState) wire.Result {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return wire.Result{Status: 126, Error: err.Error()}
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return wire.Result{Status: 128 + int(ws.Signal())}
	}
	return wire.Result{Status: st.ExitCode()}
}

// output sends what a command writes.
type output struct {
	conn *wire.Conn
	kind wire.Kind
	id   uint32
}

func (o output) Write(p []byte) (int, error) {
	if err := o.conn.Send(wire.Frame{Kind: o.kind, ID: o.id, Data: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

func greeting(setup string) wire.Greeting {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	g := wire.Greeting{Release: strings.TrimSpace(string(release)), Error: setup}
	uptime, _ := os.ReadFile("/proc/uptime")
	fmt.Sscan(string(uptime), &g.Uptime)
	return g
}

// openLine opens the serial line: a tty, made transparent, or a virtio port.
func openLine(name string) (io.ReadWriter, error) {
	if port, ok := strings.CutPrefix(name, "virtio:"); ok {
		ports, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, p := range ports {
			if b, _ := os.ReadFile(p); strings.TrimSpace(string(b)) == port {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(p)), os.O_RDWR, 0)
			}
		}
		return nil, fmt.Errorf("no virtio port %s", port)
	}
	fd, err := syscall.Open(name, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	var t syscall.Termios
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TCGETS, uintptr(unsafe.Pointer(&t))); errno != 0 {
		return nil, fmt.Errorf("read settings of %s: %w", name, errno)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = t.Cflag&^syscall.PARENB | syscall.CS8 | syscall.CREAD | syscall.CLOCAL
	t.Cc[syscall.VMIN], t.Cc[syscall.VTIME] = 1, 0
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TCSETS, uintptr(unsafe.Pointer(&t))); errno != 0 {
		return nil, fmt.Errorf("set %s: %w", name, errno)
	}
	return os.NewFile(uintptr(fd), name), nil
}
