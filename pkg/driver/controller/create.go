package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/capacity"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// CreateVolume reserves the bytes, writes a UblkVolume and waits until its node
// made the file. A call with a name that exists continues where the earlier one
// was, or says what differs.
func (s *Service) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	w, err := parseCreate(r)
	if err != nil {
		return nil, err
	}
	release, err := s.locks.Acquire(w.id, "CreateVolume")
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := s.ensure(ctx, w)
	if err != nil {
		return nil, err
	}
	if err := s.checkNode(ctx, v); err != nil {
		return nil, err
	}
	if v, err = s.awaitReady(ctx, v); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: describe(v)}, nil
}

// ensure returns the object for what is wanted, existing or new.
func (s *Service) ensure(ctx context.Context, w wanted) (*v1alpha1.UblkVolume, error) {
	v, err := s.cached(w.id)
	if err != nil {
		return nil, err
	}
	if v == nil {
		if w.source != nil {
			if w, err = s.fromSource(ctx, w); err != nil {
				return nil, err
			}
		}
		if v, err = s.create(ctx, w); err != nil {
			return nil, err
		}
	}
	return v, check(v, w)
}

// create reserves a place and writes the object, or returns the one that is
// there although the cache does not show it yet. Without an object of its own it
// leaves no reservation.
func (s *Service) create(ctx context.Context, w wanted) (*v1alpha1.UblkVolume, error) {
	at, err := s.o.Ledger.Reserve(capacity.Request{Name: w.id, Pool: w.pool, Bytes: w.bytes, Nodes: w.nodes, Preferred: w.preferred})
	if err != nil {
		return nil, err // matches ENOSPC: RESOURCE_EXHAUSTED, so that another node is tried
	}
	v := &v1alpha1.UblkVolume{
		ObjectMeta: metav1.ObjectMeta{Name: w.id, Finalizers: []string{v1alpha1.VolumeFinalizer}},
		Spec: v1alpha1.UblkVolumeSpec{
			Node: at.Node, Pool: at.Pool, CapacityBytes: w.bytes, CSIName: w.name,
			Queues: w.queues, QueueDepth: w.queueDepth, Source: w.source, State: v1alpha1.VolumePresent,
			Limits: specLimits(w.limits),
		},
	}
	err = s.o.Client.Create(ctx, v)
	if err == nil {
		s.o.Ledger.Commit(w.id, string(v.UID))
		return v, nil
	}
	defer s.o.Ledger.Release(w.id)
	if !apierrors.IsAlreadyExists(err) {
		// It may have been written all the same: then the watch will show it, and
		// the next call continues with it.
		return nil, apiError(fmt.Errorf("write UblkVolume %s: %w", w.id, err))
	}
	if v, err = s.live(ctx, w.id); err == nil && v == nil {
		err = status.Errorf(codes.Aborted, "volume %q is being deleted; retry when it is gone", w.id)
	}
	return v, err
}

// check says whether an existing volume is what is wanted: nil, ALREADY_EXISTS
// with all that differs, or ABORTED while it is on its way out.
func check(v *v1alpha1.UblkVolume, w wanted) error {
	if v.DeletionTimestamp != nil || v.Spec.State == v1alpha1.VolumeAbsent {
		return status.Errorf(codes.Aborted, "volume %q is being deleted on node %s; retry when it is gone", v.Name, v.Spec.Node)
	}
	var differs []string
	note := func(same bool, format string, args ...any) {
		if !same {
			differs = append(differs, fmt.Sprintf(format, args...))
		}
	}
	note(v.Spec.CSIName == w.name, "it was made for the name %q", v.Spec.CSIName)
	note(w.allows(v.Spec.Node), "it is on node %s, which the topology does not allow", v.Spec.Node)
	note(v.Spec.Pool == w.pool, "it is in pool %q, not %q", v.Spec.Pool, w.pool)
	note(v.Spec.Queues == w.queues, "it has %d queues, not %d", v.Spec.Queues, w.queues)
	note(v.Spec.QueueDepth == w.queueDepth, "its queue depth is %d, not %d", v.Spec.QueueDepth, w.queueDepth)
	note(sameSource(v.Spec.Source, w.source), "its source is %v, not %v", contentSource(v.Spec.Source), contentSource(w.source))
	note(limitsOf(v.Spec.Limits) == w.limits, "its limits are %+v, not %+v", limitsOf(v.Spec.Limits), w.limits)
	size := checkRange(v.Spec.CapacityBytes, w.size)
	note(size == "", "%s", size)
	if differs == nil {
		return nil
	}
	return status.Errorf(codes.AlreadyExists, "volume %q exists and differs: %s", w.name, strings.Join(differs, "; "))
}

// checkNode gives up a volume that was never made and whose node has vanished
// meanwhile; nobody would ever make it.
func (s *Service) checkNode(ctx context.Context, v *v1alpha1.UblkVolume) error {
	if meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.VolumeCreated) {
		return nil
	}
	gone, err := s.nodeGone(ctx, v.Spec.Node)
	if err != nil || !gone {
		return err
	}
	if err := s.forget(ctx, v); err != nil {
		return err
	}
	return status.Errorf(codes.ResourceExhausted, "volume %q: node %s vanished before it made the volume", v.Name, v.Spec.Node)
}

// hopeless are the reasons of a new volume not being ready that no waiting mends:
// it has to go elsewhere. One that was made once is not new, and has data to lose.
// Each comes with what it is for the caller: RESOURCE_EXHAUSTED has the scheduler
// pick another node.
var hopeless = map[string]codes.Code{
	v1alpha1.ReasonPoolFull:    codes.ResourceExhausted,
	v1alpha1.ReasonPoolMissing: codes.ResourceExhausted,
	v1alpha1.ReasonPoolFailed:  codes.ResourceExhausted,
	// Of a copy.
	v1alpha1.ReasonSourceMissing: codes.NotFound,
	v1alpha1.ReasonNoReflink:     codes.FailedPrecondition,
	v1alpha1.ReasonFileSize:      codes.OutOfRange,
}

// awaitReady waits until the node says that v's file is there, and returns the
// object as it is then. A volume that the node can't make is removed again. When
// the time is up the object stays, and the next call goes on waiting.
func (s *Service) awaitReady(ctx context.Context, v *v1alpha1.UblkVolume) (*v1alpha1.UblkVolume, error) {
	seen := v
	patient, cancel := s.patience(ctx, v.Spec.Node)
	defer cancel()
	err := s.await(patient, v.Name, func(now *v1alpha1.UblkVolume) (bool, error) {
		if now == nil && seen == v {
			return false, nil // the cache does not show it yet
		}
		if now == nil || now.UID != v.UID || now.DeletionTimestamp != nil {
			return false, status.Errorf(codes.Aborted, "volume %q was deleted while it was being created; retry", v.Name)
		}
		seen = now
		ready := answered(now, v1alpha1.VolumeReady)
		made := meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.VolumeCreated)
		if ready == nil {
			return false, nil
		}
		_, final := hopeless[ready.Reason]
		return ready.Status == metav1.ConditionTrue || final && !made, nil
	})
	if ctxErr := ctxError(err); ctxErr != nil {
		return nil, s.late(v, seen, ctxErr)
	}
	if err != nil {
		return nil, err
	}
	if ready := answered(seen, v1alpha1.VolumeReady); ready.Status != metav1.ConditionTrue {
		return nil, s.giveUp(ctx, seen, hopeless[ready.Reason], fmt.Sprintf("node %s can't make the volume: %s", seen.Spec.Node, because(ready.Reason, ready.Message)))
	}
	return seen, nil
}

// answered is the condition of this type if the node wrote it for the spec as it
// is now; nil if it did not answer yet.
func answered(v *v1alpha1.UblkVolume, condition string) *metav1.Condition {
	if v.Status.ObservedGeneration != v.Generation {
		return nil
	}
	return meta.FindStatusCondition(v.Status.Conditions, condition)
}

// giveUp removes a volume that its node could not make, waits for its end as
// long as ctx allows, and answers with why.
func (s *Service) giveUp(ctx context.Context, v *v1alpha1.UblkVolume, code codes.Code, why string) error {
	// Exactly what was looked at: it may have become ready since, and the next
	// call then finds it so.
	if err := s.delete(ctx, v, client.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion}); err != nil {
		return err
	}
	s.awaitGone(ctx, v)
	return status.Errorf(code, "volume %q: %s", v.Name, why)
}

// late is the answer when the time for waiting is up.
func (s *Service) late(v, seen *v1alpha1.UblkVolume, cause error) error {
	state := "has not answered"
	if ready := meta.FindStatusCondition(seen.Status.Conditions, v1alpha1.VolumeReady); ready != nil {
		state = "says " + because(ready.Reason, ready.Message)
	}
	code := driver.Code(cause)
	if why := s.silence(v.Spec.Node); why != "" {
		code, state = codes.Unavailable, state+": "+why
	}
	return status.Errorf(code, "volume %q waits for node %s to make it; the node %s. The next call goes on waiting", v.Name, v.Spec.Node, state)
}

func ctxError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// describe is a volume as CSI shows it.
func describe(v *v1alpha1.UblkVolume) *csi.Volume {
	return &csi.Volume{
		VolumeId:           v.Name,
		CapacityBytes:      v.Spec.CapacityBytes,
		VolumeContext:      params{v.Spec.Pool, v.Spec.Queues, v.Spec.QueueDepth}.context(),
		ContentSource:      contentSource(v.Spec.Source),
		AccessibleTopology: topologyOf(v.Spec.Node),
	}
}
