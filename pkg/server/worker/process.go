package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLost is matched by the error of every operation whose process ended before
// it answered: whether the operation took place is not known.
var ErrLost = errors.New("worker process is gone")

// ProcessOptions describe a child to start.
type ProcessOptions struct {
	// Command starts a process that calls Run; Args of the worker follow. Empty
	// means this binary with the argument "worker".
	Command []string
	// FencePath is passed on; the caller holds its read end.
	FencePath string
	// Rings is passed on; 0 lets the worker choose.
	Rings int
	// Counters is shared with the child.
	Counters *Counters
}

// A Process is the server's handle on one worker. Its methods may be called at
// once from many goroutines; calls that meet go in one frame.
type Process struct {
	cmd      *exec.Cmd
	socket   *os.File
	rings    int
	warnings []string
	requests chan request
	lost     chan struct{} // closed when the socket ended
	exited   chan struct{} // closed when the process was waited for
	exitErr  error

	mu      sync.Mutex
	seq     uint64
	waiting map[uint64]chan<- result
	ended   bool
}

// Start runs a worker and returns when its rings are up and its fence holds, or
// when ctx is done.
func Start(ctx context.Context, o ProcessOptions) (*Process, error) {
	if len(o.Command) == 0 {
		o.Command = []string{"/proc/self/exe", "worker"}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket pair: %w", err)
	}
	// Non-blocking before NewFile: reads then wait in the runtime's poller, and
	// closing the file ends them.
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return nil, fmt.Errorf("set socket: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "worker"), os.NewFile(uintptr(pair[1]), "server")
	args := append(append([]string{}, o.Command[1:]...), "--fence", o.FencePath, "--rings", strconv.Itoa(o.Rings))
	cmd := exec.Command(o.Command[0], args...)
	cmd.ExtraFiles = []*os.File{theirs, o.Counters.file}
	cmd.Stderr = os.Stderr
	err = cmd.Start()
	// The child must be the only one to have its end, or its death is no end.
	theirs.Close()
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("start worker: %w", err)
	}
	p := &Process{
		cmd: cmd, socket: ours,
		requests: make(chan request, maxBatch),
		lost:     make(chan struct{}),
		exited:   make(chan struct{}),
		waiting:  make(map[uint64]chan<- result),
	}
	go func() {
		p.exitErr = cmd.Wait()
		close(p.exited)
	}()
	if err := p.greet(ctx); err != nil {
		p.Kill()
		<-p.exited
		close(p.lost)
		if p.exitErr != nil {
			err = fmt.Errorf("%w (%w)", err, p.exitErr)
		}
		return nil, fmt.Errorf("start worker: %w", err)
	}
	go p.receive()
	go p.send()
	return p, nil
}

// greet waits for the hello.
func (p *Process) greet(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { p.socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	body, err := readFrame(p.socket, nil)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	h, err := decodeHello(body)
	if err != nil {
		return err
	}
	if h.version != protocolVersion {
		return fmt.Errorf("it speaks version %d, this server %d: the binary was replaced", h.version, protocolVersion)
	}
	p.rings = int(h.rings)
	if h.warnings != "" {
		p.warnings = strings.Split(h.warnings, "\n")
	}
	return nil
}

// Pid is the process's id, for Control.Start and EndRecovery.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Rings is the number of the worker's rings.
func (p *Process) Rings() int { return p.rings }

// Warnings says which privileges the worker could not get.
func (p *Process) Warnings() []string { return p.warnings }

// Lost is closed when the worker can't be talked to any more; it is then dead
// or about to be.
func (p *Process) Lost() <-chan struct{} { return p.lost }

// Exited is closed when the process has ended. Its file I/O may go on: that is
// what the fence is for.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// ExitErr says how the process ended; call it after Exited.
func (p *Process) ExitErr() error { return p.exitErr }

// Kill ends the process with SIGKILL. Its devices are QUIESCED then.
func (p *Process) Kill() {
	p.socket.Close()
	// It may have exited already, which is as good.
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
}

// Shutdown closes the socket, upon which the worker ends by itself, and waits
// for that; when ctx is done it kills.
func (p *Process) Shutdown(ctx context.Context) error {
	p.socket.Close()
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("wait for worker %d: %w", p.Pid(), context.Cause(ctx))
	}
}

// receive hands results to their callers until the socket ends.
func (p *Process) receive() {
	defer p.end()
	r := bufio.NewReaderSize(p.socket, 64<<10)
	var buf []byte
	for {
		body, err := readFrame(r, buf)
		if err != nil {
			return
		}
		buf = body
		list, err := decodeResults(body)
		if err != nil {
			return
		}
		for _, res := range list {
			p.mu.Lock()
			c := p.waiting[res.seq]
			delete(p.waiting, res.seq)
			p.mu.Unlock()
			if c != nil {
				c <- res
			}
		}
	}
}

// end fails everything that waits, and makes sure that the process is no more:
// one that can't be told to stop must not go on writing.
func (p *Process) end() {
	p.Kill()
	p.mu.Lock()
	p.ended = true
	for seq, c := range p.waiting {
		delete(p.waiting, seq)
		close(c)
	}
	p.mu.Unlock()
	close(p.lost)
}

// send writes requests, as many in a frame as are waiting.
func (p *Process) send() {
	var buf []byte
	for {
		var first request
		select {
		case first = <-p.requests:
		case <-p.lost:
			return
		}
		buf = appendRequest(beginFrame(buf, frameRequests), &first)
		n := 1
	more:
		for n < maxBatch {
			select {
			case r := <-p.requests:
				buf = appendRequest(buf, &r)
				n++
			default:
				break more
			}
		}
		if _, err := p.socket.Write(endFrame(buf, n)); err != nil {
			p.socket.Close() // receive sees it
			return
		}
	}
}
