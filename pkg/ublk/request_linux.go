package ublk

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/uring"
)

// receive looks at the request the driver has put at a tag.
func (q *ringQueue) receive(r *Ring, t *tag) {
	d := (*sys.IODesc)(unsafe.Add(q.desc, uintptr(t.index)*unsafe.Sizeof(sys.IODesc{})))
	t.op, t.flags = uint8(d.OpFlags&sys.OpMask), d.OpFlags
	t.off, t.length, t.done = d.Start*512, uint64(d.Sectors)*512, 0
	t.begun, t.tries = r.now, 0
	q.arrive(r, t)
}

// start finds a request that nothing keeps back a buffer.
func (q *ringQueue) start(r *Ring, t *tag) {
	q.inFlight++
	if q.file != nil && t.op != sys.OpRead && q.file.fail.failed() {
		q.commit(r, t, -int32(unix.EIO))
		return
	}
	if q.needsBuffer(t) {
		if t.length > uint64(r.pool.size) {
			// The driver never sends more than the device's MaxIOBytes.
			q.commit(r, t, -int32(unix.EIO))
			return
		}
		// Who came earlier goes first, even if a buffer is free by now.
		if r.waiting.head == nil {
			t.buf = r.pool.take()
		}
		if t.buf == noBuffer {
			q.counters.BufferWaits.Add(1)
			t.phase = inLine
			r.waiting.push(t)
			return
		}
	}
	q.begin(r, t)
}

func (q *ringQueue) needsBuffer(t *tag) bool {
	return (q.file != nil || q.backend != nil) && (t.op == sys.OpRead || t.op == sys.OpWrite)
}

// begin starts a request that has all it needs.
func (q *ringQueue) begin(r *Ring, t *tag) {
	switch {
	case q.file != nil:
		q.startFile(r, t)
	case q.backend != nil:
		q.commit(r, t, q.callBackend(r, t))
	case t.op == sys.OpRead || t.op == sys.OpWrite:
		q.commit(r, t, int32(t.length))
	default:
		q.commit(r, t, 0)
	}
}

// commit answers the driver outside a chain: a result, or a negative errno.
func (q *ringQueue) commit(r *Ring, t *tag, res int32) {
	q.finish(r, t, res)
	t.phase = atKernel
	r.space(1)
	q.command(r, t, sys.CommitAndFetch, res)
}

// finish gives the buffer back and counts the request.
func (q *ringQueue) finish(r *Ring, t *tag, res int32) {
	if t.buf != noBuffer {
		r.pool.put(t.buf)
		t.buf = noBuffer
	}
	q.ended()
	c, took := q.counters, uint64(r.now-t.begun)
	switch t.op {
	case sys.OpRead:
		count(&c.Reads, &c.ReadErrors, &c.ReadNanos, res, took)
		if res > 0 {
			c.ReadBytes.Add(t.length)
		}
	case sys.OpWrite:
		count(&c.Writes, &c.WriteErrors, &c.WriteNanos, res, took)
		if res > 0 {
			c.WriteBytes.Add(t.length)
			if t.flags&sys.FlagFUA != 0 {
				c.FUAWrites.Add(1)
			}
		}
	case sys.OpFlush:
		count(&c.Flushes, &c.FlushErrors, &c.FlushNanos, res, took)
	case sys.OpDiscard:
		count(&c.Discards, &c.DiscardErrors, &c.DiscardNanos, res, took)
		if res >= 0 {
			c.DiscardBytes.Add(t.length)
		}
	case sys.OpWriteZeroes:
		count(&c.WriteZeroes, &c.WriteZeroesErrors, &c.WriteZeroesNanos, res, took)
		if res >= 0 {
			c.WriteZeroesBytes.Add(t.length)
		}
	}
}

// startFile puts a read or a write into the ring at once: the file, the device
// and the commit run one after the other without this thread. On kernels that read a
// commit too late for that (before Linux 6.15; see uring.CopiesCommands) only the file's
// part is the ring's, and this thread copies itself, for a reason of its own: a request
// whose server dies while a thread of io-wq copies its data ends with EIO there, in spite
// of recovery. A system call of this thread is over before the thread is.
//
// The other operations go alone. A chain goes on after a sync or an fallocate
// that failed (neither marks its entry as failed), so that a linked commit would
// answer success.
func (q *ringQueue) startFile(r *Ring, t *tag) {
	r.space(3)
	t.phase, t.moved, t.committed = inChain, false, false
	switch {
	case t.op == sys.OpRead && !r.links:
		t.phase = filling
		q.fileRead(r, t, 0, stepAlone, 0)
		return
	case t.op == sys.OpWrite && !r.links:
		q.copyIn(r, t)
		return
	}
	switch t.op {
	case sys.OpRead:
		q.fileRead(r, t, 0, stepFirst, uring.Link|uring.SkipSuccess)
		q.toDevice(r, t, stepMove, uring.Link)
	case sys.OpWrite:
		q.fromDevice(r, t, stepFirst, uring.Link|uring.SkipSuccess)
		q.fileWrite(r, t, 0, stepMove, uring.Link)
	case sys.OpFlush:
		q.sync(r, t)
	case sys.OpDiscard:
		q.fallocate(r, t, unix.FALLOC_FL_PUNCH_HOLE)
	case sys.OpWriteZeroes:
		if t.flags&sys.FlagNoUnmap != 0 {
			q.fallocate(r, t, unix.FALLOC_FL_ZERO_RANGE)
		} else {
			q.fallocate(r, t, unix.FALLOC_FL_PUNCH_HOLE)
		}
	default:
		q.commit(r, t, -int32(unix.EOPNOTSUPP))
	}
	if t.phase == inChain {
		q.command(r, t, sys.CommitAndFetch, int32(t.length))
	}
}

// copyIn takes the data of a write from the device, by this thread, and goes on with the
// file.
func (q *ringQueue) copyIn(r *Ring, t *tag) {
	n, err := unix.Pread(q.device.fd, r.pool.bytes(t.buf, int(t.length)), int64(sys.DataOffset(q.id, t.index)))
	if n != int(t.length) {
		q.notCopied(r, t, err)
		return
	}
	t.phase = storing
	q.fileWrite(r, t, 0, stepAlone, 0)
}

// copyOut gives the data of a read to the device, by this thread, and answers.
func (q *ringQueue) copyOut(r *Ring, t *tag) {
	n, err := unix.Pwrite(q.device.fd, r.pool.bytes(t.buf, int(t.length)), int64(sys.DataOffset(q.id, t.index)))
	if n != int(t.length) {
		q.notCopied(r, t, err)
		return
	}
	q.commit(r, t, int32(t.length))
}

func (q *ringQueue) notCopied(r *Ring, t *tag, err error) {
	errno, _ := err.(unix.Errno)
	q.note(t, true, -int32(errno))
	q.fail(r, t, -int32(unix.EIO))
}

func (q *ringQueue) entry(r *Ring, t *tag, s step, flags uint8) *uring.SQE {
	e := r.ring.Next()
	e.Flags, e.UserData = flags, userData(q.slot, s, t.index)
	return e
}

func (q *ringQueue) fileRead(r *Ring, t *tag, from uint64, s step, flags uint8) {
	q.entry(r, t, s, flags).Read(q.file.fd, unsafe.Add(r.pool.at(t.buf), from), int(t.length-from), t.off+from)
}

func (q *ringQueue) fileWrite(r *Ring, t *tag, from uint64, s step, flags uint8) {
	rwf := uint32(0)
	if t.flags&sys.FlagFUA != 0 {
		rwf = unix.RWF_DSYNC
	}
	q.entry(r, t, s, flags).Write(q.file.fd, unsafe.Add(r.pool.at(t.buf), from), int(t.length-from), t.off+from, rwf)
}

func (q *ringQueue) toDevice(r *Ring, t *tag, s step, flags uint8) {
	q.entry(r, t, s, flags).Write(q.device.fd, r.pool.at(t.buf), int(t.length), sys.DataOffset(q.id, t.index), 0)
}

func (q *ringQueue) fromDevice(r *Ring, t *tag, s step, flags uint8) {
	q.entry(r, t, s, flags).Read(q.device.fd, r.pool.at(t.buf), int(t.length), sys.DataOffset(q.id, t.index))
}

// sync makes the whole file durable: a flush has no range, and covers the
// completed writes of every queue.
func (q *ringQueue) sync(r *Ring, t *tag) {
	t.phase = syncing
	q.entry(r, t, stepAlone, 0).Fdatasync(q.file.fd)
}

func (q *ringQueue) fallocate(r *Ring, t *tag, mode uint32) {
	t.phase = allocating
	q.entry(r, t, stepAlone, 0).Fallocate(q.file.fd, mode|unix.FALLOC_FL_KEEP_SIZE, t.off, t.length)
}
