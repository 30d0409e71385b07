package ublk

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/uring"
)

// Ring answers the requests of many queues of many devices, on one OS thread
// that is its own as long as it lives. The kernel ties each queue to the thread
// that armed it.
type Ring struct {
	opt  RingOptions
	wake int // eventfd

	mu      sync.Mutex
	inbox   []func() // for the thread to run
	closing bool
	serving int // queues attached and not over
	err     error
	ended   chan struct{}

	// All below belongs to the ring's thread.
	ring    *uring.Ring
	queues  []*ringQueue // by slot; nil where free
	pool    bufferPool
	waiting fifo
	wakeBuf []byte
	// links: a commit may be the end of a chain.
	links bool
	now   int64 // what clock says, read once a batch
	// throttled are the queues with requests that wait because of limits, linked
	// through them; due is when the first of those may go on.
	throttled *ringQueue
	due       int64
	scratch   uring.CQE
}

// batch bounds the completions handled before new entries are handed over, so
// that the first of many requests need not wait for the last.
const batch = 128

// completions has room for two of each tag of 512 queues of depth 64. More do
// not get lost: the kernel keeps them until there is room.
const completions = 65536

// NewRing starts a ring.
func NewRing(o RingOptions) (*Ring, error) {
	o = o.withDefaults()
	page := os.Getpagesize()
	o.BufferBytes = (o.BufferBytes + page - 1) / page * page
	r := &Ring{opt: o, ended: make(chan struct{}), due: never}
	var err error
	if r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, opError("eventfd", -1, err)
	}
	if r.wakeBuf, err = mapMemory(8); err == nil {
		r.pool, err = newBufferPool(o.Buffers, o.BufferBytes)
	}
	if err == nil {
		ready := make(chan error)
		go r.loop(ready)
		if err = <-ready; err != nil {
			<-r.ended
		}
	}
	if err != nil {
		r.free()
		return nil, opError("new ring", -1, err)
	}
	return r, nil
}

func (r *Ring) free() {
	_ = unix.Close(r.wake)
	_ = unix.Munmap(r.wakeBuf)
	r.pool.free()
}

// Close ends the ring and its thread. While it serves a queue whose tags are
// not all aborted it refuses with ErrBusy.
func (r *Ring) Close() error {
	r.mu.Lock()
	switch {
	case r.closing:
		r.mu.Unlock()
		return opError("close ring", -1, os.ErrClosed)
	case r.serving > 0 && r.err == nil:
		r.mu.Unlock()
		return opError("close ring", -1, ErrBusy)
	}
	r.closing = true
	r.mu.Unlock()
	kickEventfd(r.wake)
	<-r.ended
	if r.err != nil {
		// The kernel may still write to the buffers: they are never freed.
		return opError("close ring", -1, r.err)
	}
	r.free()
	return nil
}

// Err returns why the ring's thread has ended, or nil. All devices with a queue
// on it are then done, with an error.
func (r *Ring) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return opError("ring", -1, r.err)
}

// attach hands a queue to the thread and waits until it is armed.
func (r *Ring) attach(q *ringQueue) error {
	reply := make(chan error, 1)
	if !r.post(1, func() { reply <- r.arm(q) }) {
		return errors.Join(errNotArmed, r.Err())
	}
	select {
	case err := <-reply:
		return err
	case <-r.ended:
		return errors.Join(errNotArmed, r.Err())
	}
}

// post has the thread run f, after what was posted before, and counts the queues that it
// brings. A ring that is closed takes nothing, and says so; one that breaks down later may
// never run it.
func (r *Ring) post(queues int, f func()) bool {
	r.mu.Lock()
	if r.closing || r.err != nil {
		r.mu.Unlock()
		return false
	}
	r.serving += queues
	r.inbox = append(r.inbox, f)
	r.mu.Unlock()
	kickEventfd(r.wake)
	return true
}

// errNotArmed says that a queue never reached the ring's thread.
var errNotArmed = fmt.Errorf("the ring is gone: %w", os.ErrClosed)

// loop is the ring's thread. It never unlocks it: when it returns, the thread
// ends, and with it the kernel's workers that belonged to it.
func (r *Ring) loop(ready chan<- error) {
	runtime.LockOSThread()
	defer close(r.ended)
	err := r.open()
	ready <- err
	if err != nil {
		return
	}
	err = r.run()
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	if err != nil {
		r.giveUp(err)
	}
	_ = r.ring.Close()
}

func (r *Ring) open() (err error) {
	r.ring, err = uring.New(uring.Config{Entries: uint32(r.opt.Entries), CompletionEntries: completions})
	if err != nil {
		return err
	}
	n := uint32(r.opt.Workers)
	err = r.ring.SetWorkers(n, n)
	if err == nil {
		r.links, err = uring.CopiesCommands()
	}
	if err == nil && r.opt.Fence != nil {
		err = r.ring.RegisterFile(int(r.opt.Fence.Fd()))
	}
	if err != nil {
		_ = r.ring.Close()
		return err
	}
	r.armWake()
	return nil
}

// run turns completions into entries until there is nothing left to serve. It
// does not allocate, lock, log or block on anything but the ring.
func (r *Ring) run() error {
	var e uring.CQE
	for {
		r.now = clock()
		for n := 0; n < batch && r.ring.Peek(&e); n++ {
			if r.complete(&e) {
				return nil
			}
		}
		r.startThrottled()
		r.startWaiting()
		if n := r.ring.Dropped(); n != 0 {
			return fmt.Errorf("the kernel dropped %d completions", n)
		}
		err := r.ring.Submit()
		if err == nil && !r.ring.Ready() {
			err = r.wait()
		}
		if err != nil {
			return err
		}
	}
}

// complete handles one completion, and reports whether it was the last.
func (r *Ring) complete(e *uring.CQE) (last bool) {
	slot, step, tag := splitUserData(e.UserData)
	if step == stepWake {
		r.armWake()
		return r.readInbox()
	}
	q := r.queues[slot]
	q.complete(r, tag, step, e.Res)
	if q.alive == 0 {
		r.detach(q)
	}
	return false
}

func (r *Ring) armWake() {
	r.space(1)
	s := r.ring.Next()
	s.Read(r.wake, unsafe.Pointer(&r.wakeBuf[0]), 8, 0)
	s.UserData = userData(0, stepWake, 0)
}

func (r *Ring) readInbox() (last bool) {
	r.mu.Lock()
	inbox, closing := r.inbox, r.closing
	r.inbox = nil
	r.mu.Unlock()
	for _, f := range inbox {
		f()
	}
	return closing && r.idle()
}

// clock is the time that all rings count in, in nanoseconds since some moment.
func clock() int64 { return int64(time.Since(epoch)) }

var epoch = time.Now()

func (r *Ring) idle() bool {
	for _, q := range r.queues {
		if q != nil {
			return false
		}
	}
	return true
}

// space makes sure that n entries fit, so that a chain is never torn: a chain
// ends where a submission ends.
func (r *Ring) space(n int) {
	for r.ring.Space() < n {
		// Only a kernel short of memory leaves entries behind.
		if err := r.ring.Submit(); err != nil || r.ring.Space() < n {
			runtime.Gosched()
		}
	}
}

// detach forgets a queue that is over.
func (r *Ring) detach(q *ringQueue) {
	r.queues[q.slot] = nil
	r.mu.Lock()
	r.serving--
	r.mu.Unlock()
	q.device.tagsGone(int64(len(q.tags)))
}

// giveUp tells everybody who counts on the ring that it is gone.
func (r *Ring) giveUp(err error) {
	for _, q := range r.queues {
		if q != nil {
			q.device.fail.set(err)
			q.device.finish()
		}
	}
}
