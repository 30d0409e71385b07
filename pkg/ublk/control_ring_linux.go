package ublk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/uring"
)

const (
	slotCount = 256
	slotBytes = 256

	// callBack is how long a command that was interrupted may take to end.
	callBack = time.Second
)

// A request is one command as its caller puts it.
type request struct {
	op   sys.Op
	dev  uint32
	data uint64
	in   []byte // copied to the kernel
	out  []byte // copied from the kernel, on success
	path int    // bytes of in that are a path (GET_DEV_INFO2)
}

// A command is a request on its way. Its buffer is the kernel's from submission
// to completion, however long that takes and whoever still waits.
type command struct {
	request
	slot int
	done chan struct{}
	res  int32
	at   time.Time // when it completed
	// abandoned and over decide, under Control.mu, who frees the slot.
	abandoned, over bool
}

// A task is what the loop is asked for: to submit a command, or later to call it back.
type task struct {
	cmd    *command
	recall bool
}

// do runs a command to its end, and makes an OpError of what went wrong.
func (c *Control) do(ctx context.Context, r request) error {
	_, err := c.run(ctx, r)
	dev := int64(r.dev)
	if r.dev == sys.AnyDevice {
		dev = -1
	}
	return opError(r.op.String(), dev, err)
}

// run is do for callers who want to know when exactly the kernel was done.
func (c *Control) run(ctx context.Context, r request) (time.Time, error) {
	ctx, stop := context.WithTimeout(ctx, c.opt.Timeout)
	defer stop()
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	var slot int
	select {
	case slot = <-c.slots:
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("%w: all %d commands in flight are stuck: %w", ErrWedged, slotCount, ctx.Err())
	}
	cmd := &command{request: r, slot: slot, done: make(chan struct{})}
	copy(c.slotBytes(slot), r.in)
	if err := c.enqueue(cmd); err != nil {
		c.slots <- slot
		return time.Time{}, err
	}
	select {
	case <-cmd.done:
		return c.finish(cmd)
	case <-ctx.Done():
		return c.recall(ctx, cmd)
	}
}

// recall interrupts a command that nobody wants to wait for any longer.
func (c *Control) recall(ctx context.Context, cmd *command) (time.Time, error) {
	c.mu.Lock()
	c.queue = append(c.queue, task{cmd, true})
	c.mu.Unlock()
	c.kick()
	patience := time.NewTimer(callBack)
	defer patience.Stop()
	select {
	case <-cmd.done:
		at, err := c.finish(cmd)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECANCELED) {
			err = ctx.Err()
		}
		return at, err
	case <-patience.C:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cmd.over {
		// It ended at the last moment; the slot is ours to free.
		return c.finish(cmd)
	}
	cmd.abandoned = true
	return time.Time{}, fmt.Errorf("%w: %w", ErrWedged, ctx.Err())
}

func (c *Control) finish(cmd *command) (time.Time, error) {
	defer func() { c.slots <- cmd.slot }()
	if cmd.res < 0 {
		return cmd.at, unix.Errno(-cmd.res)
	}
	copy(cmd.out, c.slotBytes(cmd.slot)[cmd.path:])
	return cmd.at, nil
}

func (c *Control) slotBytes(slot int) []byte {
	return c.payload[slot*slotBytes : (slot+1)*slotBytes]
}

func (c *Control) enqueue(cmd *command) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return os.ErrClosed
	}
	c.queue = append(c.queue, task{cmd, false})
	c.mu.Unlock()
	c.kick()
	return nil
}

func (c *Control) kick() { kickEventfd(c.wake) }

// start makes the shared memory and the goroutine that owns the ring.
func (c *Control) start() error {
	var err error
	// One more than there are slots: the last takes what the eventfd counts.
	if c.payload, err = mapMemory((slotCount + 1) * slotBytes); err != nil {
		return err
	}
	if c.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		_ = unix.Munmap(c.payload)
		return fmt.Errorf("eventfd: %w", err)
	}
	for i := range slotCount {
		c.slots <- i
	}
	ready := make(chan error)
	go c.loop(ready)
	if err = <-ready; err != nil {
		<-c.ended
		c.free()
	}
	return err
}

func (c *Control) free() {
	_ = unix.Close(c.wake)
	_ = unix.Munmap(c.payload)
}

// Close ends the control. Commands in flight are waited for, up to
// ControlOptions.Timeout: after that the error matches ErrWedged, and a thread
// and some memory are lost to the command that never ended.
func (c *Control) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return os.ErrClosed
	}
	c.closed = true
	c.mu.Unlock()
	c.kick()
	patience := time.NewTimer(c.opt.Timeout)
	defer patience.Stop()
	select {
	case <-c.ended:
	case <-patience.C:
		return opError("close", -1, ErrWedged)
	}
	c.free()
	return errors.Join(c.loopDone, c.file.Close())
}

// User data of entries that are no commands; a command's is its slot.
const (
	wakeUp      = 1 << 32
	cancelReply = 1 << 33
)

// loop owns the control ring. Its thread stays locked, also at the end: the
// kernel's workers that run the commands are that thread's, so that it must
// neither go away nor be used for anything else.
func (c *Control) loop(ready chan<- error) {
	runtime.LockOSThread()
	c.thread.Store(int32(unix.Gettid()))
	defer close(c.ended)
	ring, err := uring.New(uring.Config{Entries: slotCount, CompletionEntries: 4 * slotCount, Wide: true})
	if err == nil {
		// Each command blocks a worker; the default bound is a few per CPU.
		n := uint32(c.opt.Workers)
		if err = ring.SetWorkers(n, n); err != nil {
			ring.Close()
		}
	}
	ready <- err
	if err != nil {
		return
	}
	defer ring.Close()
	l := controlLoop{Control: c, ring: ring}
	l.run()
}

type controlLoop struct {
	*Control
	ring     *uring.Ring
	flight   [slotCount]*command
	inFlight int
	armed    bool
}

func (l *controlLoop) run() {
	for {
		l.armWake()
		closed := l.submitQueued()
		if closed && l.inFlight == 0 {
			return
		}
		if err := l.ring.Wait(); err != nil {
			l.loopDone = err
			return
		}
		var e uring.CQE
		for l.ring.Peek(&e) {
			l.complete(e)
		}
	}
}

func (l *controlLoop) armWake() {
	if l.armed {
		return
	}
	s := l.ring.Next()
	s.Read(l.wake, unsafe.Pointer(&l.slotBytes(slotCount)[0]), 8, 0)
	s.UserData = wakeUp
	l.armed = true
}

// submitQueued turns what callers queued into entries. There is always space:
// slots bound the commands, and each is called back once at most.
func (l *controlLoop) submitQueued() (closed bool) {
	l.mu.Lock()
	queue, closed := l.queue, l.closed
	l.queue = nil
	l.mu.Unlock()
	for _, task := range queue {
		if l.ring.Space() == 0 {
			_ = l.ring.Submit()
		}
		cmd := task.cmd
		// It was submitted before, at least as an entry.
		if task.recall && l.flight[cmd.slot] != cmd {
			continue // it has ended by itself
		}
		s := l.ring.Next()
		if task.recall {
			s.Cancel(uint64(cmd.slot))
			s.UserData = cancelReply
			continue
		}
		l.fill(s, cmd)
		l.flight[cmd.slot] = cmd
		l.inFlight++
	}
	return closed
}

func (l *controlLoop) fill(s *uring.SQE, cmd *command) {
	p := (*sys.CtrlCmd)(s.Command(l.fd, uint32(cmd.op)))
	p.DevID, p.QueueID, p.Data = cmd.dev, sys.NoQueue, cmd.data
	if n := max(len(cmd.in), len(cmd.out)+cmd.path); n > 0 {
		p.Addr = uint64(uintptr(unsafe.Pointer(&l.slotBytes(cmd.slot)[0])))
		p.Len = uint16(n)
		p.PathLen = uint16(cmd.path)
	}
	s.UserData = uint64(cmd.slot)
}

func (l *controlLoop) complete(e uring.CQE) {
	switch e.UserData {
	case wakeUp:
		l.armed = false
		return
	case cancelReply:
		return
	}
	cmd := l.flight[e.UserData]
	l.flight[e.UserData] = nil
	l.inFlight--
	cmd.res, cmd.at = e.Res, time.Now()
	l.mu.Lock()
	cmd.over = true
	abandoned := cmd.abandoned
	l.mu.Unlock()
	if abandoned {
		l.slots <- cmd.slot
		return
	}
	close(cmd.done)
}
