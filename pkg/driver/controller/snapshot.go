package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
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

// wantedSnapshot is a CreateSnapshot request that passed all checks.
type wantedSnapshot struct{ name, id, volume string }

// CreateSnapshot holds the bytes, writes a UblkSnapshot and waits until its node has
// cut it. A call with a name that exists continues where the earlier one was, or
// says what differs: one name is cut once.
func (s *Service) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	w, err := parseSnapshot(r)
	if err != nil {
		return nil, err
	}
	release, err := s.lockSnapshot(w.id, "CreateSnapshot")
	if err != nil {
		return nil, err
	}
	defer release()
	o, err := s.ensureSnapshot(ctx, w)
	if err != nil {
		return nil, err
	}
	if o, err = s.awaitCut(ctx, o); err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(o)}, nil
}

func parseSnapshot(r *csi.CreateSnapshotRequest) (wantedSnapshot, error) {
	if err := checkName("name", r.GetName()); err != nil {
		return wantedSnapshot{}, err
	}
	if r.GetSourceVolumeId() == "" {
		return wantedSnapshot{}, &driver.InvalidError{Field: "source_volume_id", Problem: "is empty"}
	}
	for _, key := range slices.Sorted(maps.Keys(r.GetParameters())) {
		if !strings.HasPrefix(key, paramForeign) {
			return wantedSnapshot{}, &driver.InvalidError{Field: fmt.Sprintf("parameters[%q]", key), Problem: "is not a parameter of this driver",
				Remedy: "a VolumeSnapshotClass has none"}
		}
	}
	return wantedSnapshot{name: r.GetName(), id: driver.VolumeID(r.GetName()), volume: r.GetSourceVolumeId()}, nil
}

// lockSnapshot lets one call at a time work on a snapshot.
func (s *Service) lockSnapshot(id, op string) (release func(), err error) {
	release, holder, ok := s.locks.TryAcquire(snapshotKey(id), op)
	if !ok {
		return nil, status.Errorf(codes.Aborted, "%s of snapshot %q: %s of the same snapshot is in flight; retry when it is done", op, id, holder)
	}
	return release, nil
}

// snapshotKey tells a snapshot from a volume of that id, in locks, in the ledger and
// among those who wait.
func snapshotKey(id string) string { return "snapshot/" + id }

// ensureSnapshot returns the object for what is wanted, existing or new.
func (s *Service) ensureSnapshot(ctx context.Context, w wantedSnapshot) (*v1alpha1.UblkSnapshot, error) {
	o, err := s.cachedSnapshot(w.id)
	if err != nil {
		return nil, err
	}
	if o == nil {
		if o, err = s.createSnapshot(ctx, w); err != nil {
			return nil, err
		}
	}
	switch {
	case o.DeletionTimestamp != nil:
		return nil, status.Errorf(codes.Aborted, "snapshot %q is being deleted on node %s; retry when it is gone", w.id, o.Spec.Node)
	case o.Spec.Volume != w.volume || o.Spec.CSIName != w.name:
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %q exists and differs: it is of volume %q, not %q", w.name, o.Spec.Volume, w.volume)
	}
	return o, nil
}

// createSnapshot holds what the volume has allocated and writes the object, or
// returns the one that is there although the cache does not show it yet.
func (s *Service) createSnapshot(ctx context.Context, w wantedSnapshot) (*v1alpha1.UblkSnapshot, error) {
	v, err := s.sourceVolume(ctx, "source_volume_id", w.volume)
	if err != nil {
		return nil, err
	}
	if err := s.checkSourceNode(ctx, v); err != nil {
		return nil, err
	}
	at, key := capacity.Place{Node: v.Spec.Node, Pool: v.Spec.Pool}, snapshotKey(w.id)
	if err := s.checkReflink(at); err != nil {
		return nil, err
	}
	if err := s.o.Ledger.Hold(key, at, v.Status.AllocatedBytes); err != nil {
		return nil, err
	}
	o := &v1alpha1.UblkSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: w.id, Finalizers: []string{v1alpha1.SnapshotFinalizer}},
		Spec: v1alpha1.UblkSnapshotSpec{
			Volume: w.volume, Node: at.Node, Pool: at.Pool, CSIName: w.name, SizeBytes: fileBytes(v),
		},
	}
	err = s.o.Client.Create(ctx, o)
	if err == nil {
		s.o.Ledger.Commit(key, string(o.UID))
		return o, nil
	}
	defer s.o.Ledger.Release(key)
	if !apierrors.IsAlreadyExists(err) {
		return nil, apiError(fmt.Errorf("write UblkSnapshot %s: %w", w.id, err))
	}
	if o, err = s.liveSnapshot(ctx, w.id); err == nil && o == nil {
		err = status.Errorf(codes.Aborted, "snapshot %q is being deleted; retry when it is gone", w.id)
	}
	return o, err
}

// checkSourceNode refuses to cut a volume whose node does not exist: nobody would ever do
// it, and as long as the answer is not final, the claim can't be deleted either.
func (s *Service) checkSourceNode(ctx context.Context, v *v1alpha1.UblkVolume) error {
	gone, err := s.nodeGone(ctx, v.Spec.Node)
	if err == nil && gone {
		err = status.Errorf(codes.FailedPrecondition, "volume %q can't be cut: its node %s does not exist any more", v.Name, v.Spec.Node)
	}
	return err
}

// uncuttable are the reasons of a new snapshot not being ready that no waiting mends,
// and what each is for the caller.
var uncuttable = map[string]codes.Code{
	v1alpha1.ReasonVolumeMissing: codes.NotFound,
	v1alpha1.ReasonNoReflink:     codes.FailedPrecondition,
	v1alpha1.ReasonPoolMissing:   codes.FailedPrecondition,
	v1alpha1.ReasonNodeGone:      codes.FailedPrecondition,
	v1alpha1.ReasonPoolFull:      codes.ResourceExhausted,
	// The next call takes the volume as it is then.
	v1alpha1.ReasonVolumeGrew: codes.Aborted,
}

// awaitCut waits until the node says that the snapshot is there, and returns the
// object as it is then. One that the node can't cut is removed again. When the time
// is up the object stays, and the next call goes on waiting.
func (s *Service) awaitCut(ctx context.Context, o *v1alpha1.UblkSnapshot) (*v1alpha1.UblkSnapshot, error) {
	seen := o
	var ready *metav1.Condition
	patient, cancel := s.patience(ctx, o.Spec.Node)
	defer cancel()
	err := s.awaitSnapshot(patient, o.Name, func(now *v1alpha1.UblkSnapshot) (bool, error) {
		if now == nil && seen == o {
			return false, nil // the cache does not show it yet
		}
		if now == nil || now.UID != o.UID || now.DeletionTimestamp != nil {
			return false, status.Errorf(codes.Aborted, "snapshot %q was deleted while it was being cut; retry", o.Name)
		}
		seen = now
		ready = meta.FindStatusCondition(now.Status.Conditions, v1alpha1.SnapshotReady)
		if ready == nil {
			return false, nil
		}
		if ready.Reason == v1alpha1.ReasonPoolFailed && ready.ObservedGeneration == now.Generation && now.Status.CreatedAt == nil {
			return false, status.Errorf(codes.Unavailable, "snapshot %q: node %s can't cut volume %s now: %s. It tries again, and the next call sees what has become of it", o.Name, o.Spec.Node, o.Spec.Volume, ready.Message)
		}
		_, final := uncuttable[ready.Reason]
		return ready.Status == metav1.ConditionTrue || final && now.Status.CreatedAt == nil, nil
	})
	if ctxErr := ctxError(err); ctxErr != nil {
		state := "has not answered"
		if ready != nil {
			state = "says " + because(ready.Reason, ready.Message)
		}
		code := driver.Code(ctxErr)
		if why := s.silence(o.Spec.Node); why != "" {
			code, state = codes.Unavailable, state+": "+why
		}
		return nil, status.Errorf(code, "snapshot %q waits for node %s to cut volume %s; the node %s. The next call goes on waiting", o.Name, o.Spec.Node, o.Spec.Volume, state)
	}
	if err != nil {
		return nil, err
	}
	if ready.Status == metav1.ConditionTrue {
		return seen, nil
	}
	// Exactly what was looked at: it may have been cut since.
	if err := s.deleteSnapshot(ctx, seen, client.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion}); err != nil {
		return nil, err
	}
	s.awaitSnapshotGone(ctx, seen)
	return nil, status.Errorf(uncuttable[ready.Reason], "snapshot %q: node %s can't cut volume %s: %s", o.Name, o.Spec.Node, o.Spec.Volume, because(ready.Reason, ready.Message))
}
