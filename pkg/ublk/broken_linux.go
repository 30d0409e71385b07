package ublk

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// This file is what happens when a chain does not run through (a short read at
// the end of the file, an error of the disk, no space), and what runs without.

// maxTries bounds how often a request begins anew after an interruption.
const maxTries = 16

// chained knows the result of the entry before the commit. If it is what was
// asked for, the commit is under way, and its completion is the tag's next
// request; if not, the commit completes with ECANCELED.
func (q *ringQueue) chained(r *Ring, t *tag) {
	whole := t.moveResult == int32(t.length)
	switch {
	case whole:
		q.finish(r, t, t.moveResult)
		t.phase = atKernel
		if t.committed {
			q.next(r, t, t.commitNext)
		}
	case !t.committed:
		// It will, and bring us here again.
	default:
		q.broken(r, t, t.moveResult)
	}
}

// broken goes on with a request whose chain ended early: res is the result of
// the entry that did, and none of the chain is in flight any more.
func (q *ringQueue) broken(r *Ring, t *tag, res int32) {
	fromStart := t.op == sys.OpWrite && !t.moved // its data never left the device
	copying := fromStart || t.op == sys.OpRead && t.moved
	switch {
	case q.again(r, t, res):
	case t.op == sys.OpRead && !t.moved && res >= 0:
		q.filled(r, t, uint64(res))
	case t.op == sys.OpWrite && t.moved && res >= 0:
		q.stored(r, t, uint64(res))
	case res < 0 && !fromStart:
		q.note(t, copying, res)
		q.fail(r, t, res)
	default:
		// The driver copied less than the request has: it cannot, and must
		// not be told that all is well.
		q.note(t, copying, res)
		q.fail(r, t, -int32(unix.EIO))
	}
}

// note keeps why a request fails, for people: res is the kernel's answer.
func (q *ringQueue) note(t *tag, copying bool, res int32) {
	q.counters.noteFailure(t.op, copying, unix.Errno(max(0, -res)))
}

// again begins a request anew if it was only interrupted.
func (q *ringQueue) again(r *Ring, t *tag, res int32) bool {
	if res != -int32(unix.EINTR) && res != -int32(unix.EAGAIN) || t.tries == maxTries {
		return false
	}
	t.tries++
	t.done = 0
	q.startFile(r, t)
	return true
}

// stepped goes on with a request that is being done step by step.
func (q *ringQueue) stepped(r *Ring, t *tag, res int32) {
	switch {
	case q.again(r, t, res):
	case res < 0:
		q.note(t, t.phase == emptying, res)
		q.fail(r, t, res)
	case t.phase == allocating && t.op == sys.OpWriteZeroes && t.flags&sys.FlagFUA != 0:
		r.space(1)
		q.sync(r, t)
	case t.phase == allocating, t.phase == syncing:
		q.commit(r, t, 0)
	case t.phase == filling:
		q.filled(r, t, uint64(res))
	case t.phase == storing:
		q.stored(r, t, uint64(res))
	case uint64(res) == t.length: // emptying
		q.commit(r, t, res)
	default:
		q.note(t, true, res)
		q.fail(r, t, -int32(unix.EIO))
	}
}

// filled notes that n more bytes have been read, from where resume said. When
// nothing new comes the file ends here: what was never written reads as zero.
func (q *ringQueue) filled(r *Ring, t *tag, n uint64) {
	had := t.done
	t.done = max(had, q.resume(t)+n)
	r.space(1)
	if t.done == had && t.done < t.length {
		clear(r.pool.bytes(t.buf, int(t.length))[t.done:])
		t.done = t.length
	}
	if t.done < t.length {
		t.phase = filling
		q.fileRead(r, t, q.resume(t), stepAlone, 0)
		return
	}
	if !r.links {
		q.copyOut(r, t)
		return
	}
	t.phase = emptying
	q.toDevice(r, t, stepAlone, 0)
}

// stored notes that n more bytes have been written.
func (q *ringQueue) stored(r *Ring, t *tag, n uint64) {
	had := t.done
	t.done = max(had, q.resume(t)+n)
	switch t.done {
	case t.length:
		q.commit(r, t, int32(t.length))
	case had:
		q.note(t, false, 0)
		q.fail(r, t, -int32(unix.EIO))
	default:
		t.phase = storing
		r.space(1)
		q.fileWrite(r, t, q.resume(t), stepAlone, 0)
	}
}

// resume is where to go on: direct I/O cannot begin anywhere.
func (q *ringQueue) resume(t *tag) uint64 {
	return t.done &^ (q.file.align - 1)
}

// fail answers an error, as it is. A failed flush fails the file for good: the
// kernel reports what it could not write only once.
func (q *ringQueue) fail(r *Ring, t *tag, res int32) {
	if q.file != nil && losesData(t, res) {
		err := fmt.Errorf("make durable %s: %w", q.file.f.Name(), unix.Errno(-res))
		q.file.fail.set(err)
		q.counters.Failed.Store(1)
	}
	q.commit(r, t, res)
}

// losesData tells whether an error may mean that data of earlier writes, which
// were answered with success, is lost.
func losesData(t *tag, res int32) bool {
	switch t.op {
	case sys.OpFlush:
		return true
	case sys.OpWrite, sys.OpWriteZeroes:
		// A write that must be durable also reports what earlier ones lost;
		// but these errors are only about itself.
		switch unix.Errno(-res) {
		case unix.ENOSPC, unix.EDQUOT, unix.EINVAL, unix.EOPNOTSUPP:
			return false
		}
		return t.flags&sys.FlagFUA != 0
	}
	return false
}
