package ublk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// Device is the server's side of a device: /dev/ublkcN, open and mapped. Only
// one process can have it open.
type Device struct {
	info DeviceInfo
	fd   int
	desc [][]byte // the descriptors of each queue, written by the kernel

	mu     sync.Mutex
	served []bool
	queues []*ringQueue // of served
	closed bool
	hold   *hold  // nil while nothing is held
	limits Limits // what limiter does

	limiter atomic.Pointer[limiter] // nil without limits

	// alive counts the tags that have been handed to the kernel and not been
	// aborted.
	alive atomic.Int64
	done  chan struct{}
	once  sync.Once
	fail  stickyError
}

// OpenDevice opens the char device of a device that has been added, or whose
// recovery has begun. The error is EBUSY while another process has it open.
func OpenDevice(info DeviceInfo) (*Device, error) {
	fd, err := openChar(info.CharPath())
	if errors.Is(err, fs.ErrNotExist) && makeCharNode(info.CharPath(), fmt.Sprintf("/sys/class/ublk-char/ublkc%d/dev", info.ID)) == nil {
		fd, err = openChar(info.CharPath())
	}
	if err != nil {
		return nil, opError("open", int64(info.ID), err)
	}
	d := &Device{
		info: info, fd: fd, served: make([]bool, info.Queues), done: make(chan struct{}),
	}
	page := os.Getpagesize()
	for q := range int(info.Queues) {
		b, err := unix.Mmap(fd, sys.DescOffset(q, page), sys.DescBytes(int(info.Depth), page),
			unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			d.release()
			return nil, opError("mmap", int64(info.ID), fmt.Errorf("descriptors of queue %d: %w", q, err))
		}
		d.desc = append(d.desc, b)
	}
	return d, nil
}

// openChar opens without blocking, by which the ring knows that copying to and
// from the device never blocks: otherwise each copy would go through a worker.
func openChar(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Info returns what OpenDevice was given.
func (d *Device) Info() DeviceInfo { return d.info }

// Serve lets the ring r answer the requests of a queue out of t, and returns
// once all its tags are armed. When that is so for every queue, Control.Start
// (for a new device) or Control.EndRecovery (for a recovered one) completes.
// Counts go to c, which may be nil.
//
// If it fails, some tags may be armed all the same: stop the device.
func (d *Device) Serve(queue uint16, r *Ring, t Target, c *Counters) error {
	if err := d.claim(queue, r); err != nil {
		return opError("serve", int64(d.info.ID), err)
	}
	if c == nil {
		c = new(Counters)
	}
	q := &ringQueue{
		device: d, ring: r, id: queue, desc: unsafe.Pointer(&d.desc[queue][0]),
		tags: make([]tag, d.info.Depth), counters: c,
	}
	switch t := t.(type) {
	case *FileTarget:
		q.file = t
		if c.Failed.Load() != 0 {
			// A server before this one saw the flush fail.
			t.fail.set(unix.EIO)
		}
	case *backendTarget:
		q.backend = t.Backend
	case nullTarget:
	}
	d.mu.Lock()
	d.queues = append(d.queues, q)
	d.mu.Unlock()
	err := r.attach(q)
	if errors.Is(err, errNotArmed) {
		d.tagsGone(int64(len(q.tags)))
	}
	return opError("serve", int64(d.info.ID), err)
}

func (d *Device) claim(queue uint16, r *Ring) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed, d.isDone():
		return os.ErrClosed
	case int(queue) >= len(d.served):
		return fmt.Errorf("queue %d of %d", queue, len(d.served))
	case d.served[queue]:
		return fmt.Errorf("queue %d is served already: %w", queue, ErrBusy)
	case int(d.info.MaxIOBytes) > r.opt.BufferBytes:
		return fmt.Errorf("requests of %d bytes, buffers of %d", d.info.MaxIOBytes, r.opt.BufferBytes)
	case !d.info.Features.Has(UserCopy):
		return fmt.Errorf("a device made without USER_COPY: %w", errors.ErrUnsupported)
	}
	d.served[queue] = true
	// Counted before they are armed: otherwise the device would be done between
	// one queue and the next, if the driver took back the first at once.
	d.alive.Add(int64(d.info.Depth))
	return nil
}

func (d *Device) isDone() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// Done is closed when the kernel has taken back every tag of every queue that
// was served: after Control.Stop, Quiesce or Delete. Then nothing touches the
// device any more, and Close may follow. It is also closed when the ring of a
// queue ends by an error (Err).
func (d *Device) Done() <-chan struct{} { return d.done }

// Err returns why requests may go unanswered, or nil: an answer the driver did
// not take, a ring that broke down. A device with an error should be given up
// by its process, so that another one can recover it.
func (d *Device) Err() error { return opError("serve", int64(d.info.ID), d.fail.err()) }

// Close lets go of the device. While tags are out (not Done) it refuses with
// ErrBusy: to unmap what the ring still reads would kill the process.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return opError("close", int64(d.info.ID), os.ErrClosed)
	}
	if d.alive.Load() != 0 && !d.isDone() {
		return opError("close", int64(d.info.ID), ErrBusy)
	}
	d.closed = true
	return opError("close", int64(d.info.ID), d.release())
}

// release unmaps first: a mapping keeps the file open.
func (d *Device) release() error {
	for _, b := range d.desc {
		_ = unix.Munmap(b)
	}
	d.desc = nil
	return unix.Close(d.fd)
}

// tagsGone is told by the rings of tags that will never come back.
func (d *Device) tagsGone(n int64) {
	if d.alive.Add(-n) == 0 {
		d.finish()
	}
}

func (d *Device) finish() { d.once.Do(func() { close(d.done) }) }
