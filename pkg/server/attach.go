package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"syscall"
	"time"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// Names of operations, as a caller who meets one reads them.
const (
	opAttach  = "attach"
	opDetach  = "detach"
	opRecover = "recover"
	opCut     = "cut"
	opResize  = "resize"
	opLimit   = "set limits"
)

// Limits of a volume's queues.
const (
	maxQueues     = 32
	maxQueueDepth = 1024
)

// attachLimit bounds an attach as a whole, waits included.
const attachLimit = 2 * time.Minute

var (
	// errFull: no device slot is left.
	errFull = errors.New("no device slot is left")
	// errUnavailable: not now; nothing was changed.
	errUnavailable = errors.New("unavailable")
)

// attachSpec is a checked request.
type attachSpec struct {
	volume        string
	path          string
	queues, depth uint16
	readOnly      bool
	limits        ublk.Limits
}

func newAttachSpec(r *serverv1.AttachRequest) (attachSpec, error) {
	s := attachSpec{volume: r.VolumeId, path: r.Path, queues: uint16(r.Queues), depth: uint16(r.QueueDepth), readOnly: r.ReadOnly, limits: limitsOf(r.Limits)}
	if s.queues == 0 {
		s.queues = 1
	}
	if s.depth == 0 {
		s.depth = ublk.DefaultDepth
	}
	switch {
	case !validVolumeID(s.volume):
		return s, fmt.Errorf("volume id %q: %w", s.volume, errInvalid)
	case r.Queues > maxQueues:
		return s, fmt.Errorf("queues %d, at most %d: %w", r.Queues, maxQueues, errInvalid)
	case r.QueueDepth > maxQueueDepth:
		return s, fmt.Errorf("queue depth %d, at most %d: %w", r.QueueDepth, maxQueueDepth, errInvalid)
	}
	return s, nil
}

// attached answers for a volume that is in the table.
func (s *Server) attached(spec attachSpec) (*serverv1.Device, error) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	v := s.table.volumes[spec.volume]
	if v == nil || v.op == opAttach || v.op == opDetach {
		return nil, nil
	}
	e := &v.entry
	switch {
	case e.Path != spec.path:
		return nil, fmt.Errorf("attach volume %s: it is attached with path %s: %w", spec.volume, e.Path, errInvalid)
	case e.Queues != spec.queues || e.Depth != spec.depth || e.ReadOnly != spec.readOnly:
		return nil, fmt.Errorf("attach volume %s: it is attached with queues %d, depth %d, read-only %t: %w",
			spec.volume, e.Queues, e.Depth, e.ReadOnly, errInvalid)
	case v.state == serverv1.Device_LIVE:
		return s.table.public(v), nil
	}
	return nil, fmt.Errorf("attach volume %s: %s: %s: %w", spec.volume, v.state, v.message, errUnavailable)
}

// reattached is attached, with the limits of the request.
func (s *Server) reattached(ctx context.Context, spec attachSpec) (*serverv1.Device, error) {
	d, err := s.attached(spec)
	if d == nil || limitsOf(d.Limits) == spec.limits {
		return d, err
	}
	if err := s.setLimits(ctx, spec.volume, spec.limits); err != nil {
		return nil, err
	}
	return s.attached(spec)
}

// attach serves the volume, or returns the device it has. The work goes on when
// ctx ends; only the answer is then lost.
func (s *Server) attach(ctx context.Context, spec attachSpec) (*serverv1.Device, error) {
	if d, err := s.reattached(ctx, spec); d != nil || err != nil {
		return d, err
	}
	if m := s.kernel.wedgedMessage(); m != "" {
		return nil, fmt.Errorf("attach volume %s: the kernel is wedged: %s: %w", spec.volume, m, errUnavailable)
	}
	v, err := s.table.begin(spec.volume, opAttach, true)
	if err != nil {
		return nil, err
	}
	if v.state != serverv1.Device_ATTACHING { // another call was faster
		s.end(v, opAttach)
		return s.reattached(ctx, spec)
	}
	return detached(ctx, s, attachLimit, func(ctx context.Context) (*serverv1.Device, error) {
		defer s.end(v, opAttach)
		if err := s.makeDevice(ctx, v, spec); err != nil {
			s.table.drop(v)
			return nil, fmt.Errorf("attach volume %s: %w", spec.volume, err)
		}
		s.log.Info("volume attached", "volume", spec.volume, "device", v.info.ID)
		d, _ := s.table.get(spec.volume)
		return d, nil
	})
}

// makeDevice is the way up. On an error everything is undone: at once if the
// kernel lets go of the device at once, otherwise in the background.
func (s *Server) makeDevice(ctx context.Context, v *volume, spec attachSpec) (err error) {
	phase := s.metrics.phases(opAttach)
	b, err := s.backings.open(s.poolsDir, spec.path, spec.readOnly)
	if err != nil {
		return err
	}
	phase("open")

	lane := s.lanes.of(b.device)
	if err := lane.attaching.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for a turn: %w: %w", errUnavailable, err)
	}
	defer lane.attaching.Release(1)
	// A dead worker may have left writes behind, to this file too if it was
	// attached before.
	if err := s.awaitFences(ctx, b.device); err != nil {
		return fmt.Errorf("wait for the file I/O of a dead worker: %w: %w", errUnavailable, err)
	}
	gen, err := s.workers.active(ctx, b.device)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	phase("queue")

	slot, ok := s.table.takeSlot()
	if !ok {
		return fmt.Errorf("%d devices: %w", s.options.MaxDevices, errFull)
	}
	s.counters.Reset(slot)
	info, err := s.kernel.add(ublk.DeviceOptions{
		ID: -1, Queues: spec.queues, Depth: spec.depth, Features: s.wantFeatures(), Owner: s.owner.tag,
	})
	if err != nil {
		s.table.freeSlot(slot)
		return addError(err)
	}
	phase("add")
	e := s.newEntry(spec, b, gen, info.ID)
	s.forgetFormer(info.ID)
	s.table.update(func() { v.entry, v.info, v.slot, v.worker = e, info, slot, gen })
	defer func() {
		if err != nil {
			err = errors.Join(err, s.undo(v))
		}
	}()
	return s.bringUp(ctx, v, b, gen, phase)
}

// forgetFormer deals with a volume whose device somebody deleted behind the
// server's back, as the kernel shows by giving the id away again. Its journal
// entry must go: two live entries of one device would keep both from recovery.
func (s *Server) forgetFormer(id uint32) {
	for _, e := range s.table.fail(id, errVanished.Error()) {
		s.log.Error("volume lost", "volume", e.Volume, "device", id, "error", errVanished)
		if err := s.journal.remove(e.Volume, e.Generation); err != nil {
			s.log.Error("journal entry not removed", "volume", e.Volume, "error", err)
		}
	}
}

// bringUp makes an added device live.
func (s *Server) bringUp(ctx context.Context, v *volume, b backing, gen *generation, phase func(string)) error {
	id, e := v.info.ID, v.entry
	// The kernel gives away the lowest number that is free, so with this one there are
	// more devices than that, whoever's they are: servers that share a kernel share the
	// limit, without a word to each other and without counting.
	if id >= s.options.MaxDevices {
		return fmt.Errorf("the kernel has %d devices, those of other servers on it among them: %w", s.options.MaxDevices, errFull)
	}
	p := b.info.Params()
	p.ReadOnly = e.ReadOnly
	if err := s.kernel.setParams(id, p); err != nil {
		return err
	}
	phase("set_params")
	a := attachment(v.info, b, &e, v.slot)
	// Not before it has started: the kernel may look for partitions then, in a command
	// that has a deadline.
	a.Limits = ublk.Limits{}
	if err := gen.proc.Attach(ctx, a); err != nil {
		return fmt.Errorf("serve device %d: %w", id, err)
	}
	phase("worker_attach")
	if err := s.kernel.start(id, gen.proc.Pid()); err != nil {
		return err
	}
	if e.Limits != a.Limits {
		if err := gen.proc.SetLimits(ctx, id, e.Limits); err != nil {
			return fmt.Errorf("limit device %d: %w", id, err)
		}
	}
	phase("start")
	major, minor, err := diskNumber(id)
	if err != nil {
		return err
	}
	if err := verifyBlockNode(v.info.BlockPath(), major, minor); err != nil {
		return err
	}
	phase("verify")
	if err := s.journal.put(&e); err != nil {
		return err
	}
	phase("journal")
	s.table.update(func() {
		v.entry, v.major, v.minor, v.state = e, major, minor, serverv1.Device_LIVE
	})
	return nil
}

// undo takes down what a failed attach has made. It waits a little, so that the
// caller mostly finds nothing left; what takes longer is tracked.
func (s *Server) undo(v *volume) error {
	err := s.kernel.stop(v.info.ID)
	if err != nil {
		s.log.Error("device of a failed attach not stopped", "volume", v.entry.Volume, "device", v.info.ID, "error", err)
	}
	r := s.release(v, err == nil)
	select {
	case <-r.done:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("device %d is not gone yet", v.info.ID)
	}
}

func (s *Server) newEntry(spec attachSpec, b backing, gen *generation, device uint32) entry {
	id := make([]byte, 8)
	rand.Read(id)
	return entry{
		Volume: spec.volume, Generation: hex.EncodeToString(id),
		Path: b.path, Inode: b.inode, Device: device,
		Queues: spec.queues, Depth: spec.depth, ReadOnly: spec.readOnly, SizeBytes: b.info.SizeBytes,
		Worker: gen.name, Limits: spec.limits,
	}
}

// wantFeatures are those every device needs, and the offered ones of those that
// help.
func (s *Server) wantFeatures() ublk.Features {
	return requiredFeatures | s.kernel.features()&(ublk.NoAutoPartScan|ublk.Quiesce|ublk.SafeStop)
}

// requiredFeatures must be offered by the kernel, or there is no server.
const requiredFeatures = ublk.UserCopy | ublk.UserRecovery | ublk.UserRecoveryReissue

func attachment(info ublk.DeviceInfo, b backing, e *entry, slot uint32) worker.Attachment {
	return worker.Attachment{
		Device: info, Path: b.path, FileDevice: b.device, FileInode: b.inode, File: b.info,
		ReadOnly: e.ReadOnly, Slot: slot, Limits: e.Limits,
	}
}

// addError tells a kernel that takes no more devices from one that is broken:
// with ublks_max reached ADD_DEV answers EACCES before Linux 6.15.
func addError(err error) error {
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: %w", errFull, err)
	}
	return err
}
