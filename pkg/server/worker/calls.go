package worker

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// Attachment says what to serve.
type Attachment struct {
	Device ublk.DeviceInfo
	// Path is the backing file; FileDevice and FileInode are what stat says of
	// it: any other file there is refused.
	Path                  string
	FileDevice, FileInode uint64
	// File is what ublk.ProbeFile says of it; it must hold for as long as the
	// device exists, whoever serves it.
	File     ublk.FileInfo
	ReadOnly bool
	// Slot of the shared counters.
	Slot   uint32
	Limits ublk.Limits
}

// Attach opens a device and its file, and returns when every tag is armed: the
// device can be started then. After an error other than ErrLost the caller must
// Stop the device, Drain and Close, since some tags may be armed.
func (p *Process) Attach(ctx context.Context, a Attachment) error {
	d := &a.Device
	return p.call(ctx, request{
		op: opAttach, device: d.ID, queues: d.Queues, depth: d.Depth, maxIOBytes: d.MaxIOBytes,
		features: uint64(d.Features), slot: a.Slot, readOnly: a.ReadOnly,
		fileDevice: a.FileDevice, fileInode: a.FileInode, file: a.File, path: a.Path,
		limits: a.Limits,
	})
}

// Hold keeps back the device's requests and returns when none is in flight. It waits
// for that for so long (syscall.ETIMEDOUT), and holds so long at most, both in whole
// milliseconds. After any error the caller must Resume: the device may be held.
func (p *Process) Hold(ctx context.Context, device uint32, wait, atMost time.Duration) error {
	return p.call(ctx, request{
		op: opHold, device: device,
		waitMillis: uint32(wait.Milliseconds()), holdMillis: uint32(atMost.Milliseconds()),
	})
}

// Resume ends the hold. An error says that the device was not held any more.
func (p *Process) Resume(ctx context.Context, device uint32) error {
	return p.call(ctx, request{op: opResume, device: device})
}

// SetLimits replaces the device's limits, in force when it returns.
func (p *Process) SetLimits(ctx context.Context, device uint32, l ublk.Limits) error {
	return p.call(ctx, request{op: opLimit, device: device, limits: l})
}

// Drain waits until every tag of the device has been aborted, which Stop of the
// device brings about. A device this worker does not have is drained.
func (p *Process) Drain(ctx context.Context, device uint32) error {
	return p.call(ctx, request{op: opDrain, device: device})
}

// Close lets go of a drained device and of its file.
func (p *Process) Close(ctx context.Context, device uint32) error {
	return p.call(ctx, request{op: opClose, device: device})
}

// A remoteError is an error of the other process that keeps its errno.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }

func (e *remoteError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

func (p *Process) call(ctx context.Context, r request) error {
	if len(r.path) > maxTextBytes {
		return fmt.Errorf("path of %d bytes: %w", len(r.path), syscall.ENAMETOOLONG)
	}
	answer := make(chan result, 1)
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return ErrLost
	}
	p.seq++
	r.seq = p.seq
	p.waiting[r.seq] = answer
	p.mu.Unlock()
	select {
	case p.requests <- r:
	case <-p.lost:
		return ErrLost
	case <-ctx.Done():
		p.forget(r.seq)
		return context.Cause(ctx)
	}
	select {
	case res, ok := <-answer:
		switch {
		case !ok:
			return ErrLost
		case res.text != "":
			return &remoteError{text: res.text, errno: syscall.Errno(res.errno)}
		}
		return nil
	case <-ctx.Done():
		p.forget(r.seq)
		return context.Cause(ctx)
	}
}

func (p *Process) forget(seq uint64) {
	p.mu.Lock()
	delete(p.waiting, seq)
	p.mu.Unlock()
}
