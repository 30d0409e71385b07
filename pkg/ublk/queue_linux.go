package ublk

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// ringQueue is one queue of one device, as its ring sees it.
type ringQueue struct {
	device   *Device
	ring     *Ring
	id       uint16
	slot     uint32 // place in Ring.queues
	desc     unsafe.Pointer
	tags     []tag
	alive    int // tags not aborted
	inFlight int // requests that have passed the gate and are not answered
	counters *Counters

	// What keeps requests back before they begin (hold_linux.go, throttle_linux.go).
	hold     *hold // nil while they may
	kept     fifo  // that came during the hold
	opened   int64 // Ring.now when the last hold ended
	throttle throttle

	// At most one of these is set; neither for the null target.
	file    *FileTarget
	backend Backend
}

// A tag is the place of one request at a time.
type tag struct {
	queue *ringQueue
	next  *tag // in the line in which it waits
	index uint16
	phase phase
	op    uint8
	tries uint8
	buf   int32
	flags uint32
	// The request, in bytes, and how much of it is done.
	off, length, done uint64
	begun             int64 // Ring.now when it came

	// What became of a chain's last two entries: both must be known before
	// anything else happens to the tag. See queue.complete.
	moved, committed       bool
	moveResult, commitNext int32
}

// phase is what a tag waits for.
type phase uint8

const (
	// atKernel: the driver has the tag, and will complete it with a request.
	atKernel phase = iota
	// waiting: a request is kept back by a hold or by limits.
	waiting
	// inLine: a request waits for a buffer.
	inLine
	// inChain: the whole request is one chain, file and device and commit.
	inChain
	// filling, emptying, storing: step by step, after a chain broke: the file
	// is read, the buffer goes to the device, the file is written.
	filling
	emptying
	storing
	// allocating and syncing: fallocate, fdatasync.
	allocating
	syncing
	// gone: aborted.
	gone
)

// step says which entry of a request completed.
type step uint8

const (
	stepWake step = iota
	// stepCommit ends with the next request of the tag.
	stepCommit
	// stepFirst only completes if it failed, and then the rest of its chain
	// does so in silence.
	stepFirst
	// stepMove is the one before the commit.
	stepMove
	// stepAlone is no part of a chain.
	stepAlone
)

func userData(slot uint32, s step, tag uint16) uint64 {
	return uint64(slot)<<32 | uint64(s)<<16 | uint64(tag)
}

func splitUserData(u uint64) (slot uint32, s step, tag uint16) {
	return uint32(u >> 32), step(u >> 16), uint16(u)
}

// arm hands every tag of a new queue to the driver.
func (r *Ring) arm(q *ringQueue) error {
	q.slot = r.freeSlot()
	r.queues[q.slot] = q
	q.alive = len(q.tags)
	for i := range q.tags {
		t := &q.tags[i]
		t.queue, t.index, t.buf = q, uint16(i), noBuffer
		r.space(1)
		q.command(r, t, sys.FetchReq, 0)
	}
	// The driver takes or refuses each FETCH while it is handed over; those it
	// refused complete at once, and the loop finds them after this.
	if err := r.ring.Submit(); err != nil {
		return err
	}
	return q.drainRefusals(r)
}

// drainRefusals handles completions until none is left, and so finds out
// whether the driver refused a FETCH.
func (q *ringQueue) drainRefusals(r *Ring) error {
	e := &r.scratch
	for r.ring.Peek(e) {
		r.complete(e)
	}
	if err := q.device.fail.err(); err != nil {
		return err
	}
	if q.alive < len(q.tags) {
		return fmt.Errorf("the device is being stopped: %w", unix.ENODEV)
	}
	return nil
}

func (r *Ring) freeSlot() uint32 {
	for i, q := range r.queues {
		if q == nil {
			return uint32(i)
		}
	}
	r.queues = append(r.queues, nil)
	return uint32(len(r.queues) - 1)
}

// command sends a driver command for a tag; the tag is the driver's until it
// completes.
func (q *ringQueue) command(r *Ring, t *tag, op sys.Op, result int32) {
	s := r.ring.Next()
	p := (*sys.IOCmd)(s.Command(q.device.fd, uint32(op)))
	p.Queue, p.Tag, p.Result = q.id, t.index, result
	s.UserData = userData(q.slot, stepCommit, t.index)
}

// complete is told of one completion of one of the queue's tags.
func (q *ringQueue) complete(r *Ring, index uint16, s step, res int32) {
	t := &q.tags[index]
	switch {
	case s == stepCommit && t.phase == atKernel:
		q.next(r, t, res)
	case s == stepCommit:
		t.committed, t.commitNext = true, res
	case s == stepMove:
		t.moved, t.moveResult = true, res
	case s == stepFirst:
		q.broken(r, t, res)
		return
	default:
		q.stepped(r, t, res)
		return
	}
	if t.phase == inChain && t.moved {
		q.chained(r, t)
	}
}

// next takes what the driver hands out with a tag: a request, or the news that
// there will be no more.
func (q *ringQueue) next(r *Ring, t *tag, res int32) {
	switch {
	case res == 0:
		q.receive(r, t)
		return
	case res != -int32(unix.ENODEV):
		q.device.fail.set(fmt.Errorf("queue %d tag %d: %w", q.id, t.index, unix.Errno(-res)))
	}
	t.phase = gone
	q.alive--
}
