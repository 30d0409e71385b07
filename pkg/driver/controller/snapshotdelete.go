package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// DeleteSnapshot deletes the object and waits until its node has removed the file. An
// unknown id is a success. Volumes made from the snapshot do not depend on it, nor
// does it on its volume.
func (s *Service) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	id := r.GetSnapshotId()
	if id == "" {
		return nil, &driver.InvalidError{Field: "snapshot_id", Problem: "is empty"}
	}
	if !driver.ValidVolumeID(id) {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	release, err := s.lockSnapshot(id, "DeleteSnapshot")
	if err != nil {
		return nil, err
	}
	defer release()
	// Read past the cache: a snapshot just made may not be in it.
	o, err := s.liveSnapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	if o == nil {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if err := s.removeSnapshot(ctx, o); err != nil {
		return nil, err
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// removeSnapshot returns nil when the object is gone.
func (s *Service) removeSnapshot(ctx context.Context, o *v1alpha1.UblkSnapshot) error {
	gone, err := s.nodeGone(ctx, o.Spec.Node)
	if err != nil {
		return err
	}
	if err := s.deleteSnapshot(ctx, o, client.Preconditions{UID: &o.UID}); err != nil {
		return err
	}
	if gone {
		return s.releaseSnapshot(ctx, o)
	}
	why := s.silence(o.Spec.Node)
	if why != "" { // it may be done already
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		ctx = short
	}
	err = s.awaitSnapshotGone(ctx, o)
	ctxErr := ctxError(err)
	switch {
	case ctxErr == nil:
		return err
	case why != "":
		return status.Errorf(codes.Unavailable, "snapshot %q: node %s can't remove it now: %s. It will when it is back; if it never comes back, delete the Node object and the snapshot goes with it", o.Name, o.Spec.Node, why)
	}
	return status.Errorf(driver.Code(ctxErr), "snapshot %q waits for node %s to remove it; the removal goes on", o.Name, o.Spec.Node)
}

// awaitSnapshotGone waits until the cache shows the end of an object, and the API
// server says so too: the cache may be behind.
func (s *Service) awaitSnapshotGone(ctx context.Context, o *v1alpha1.UblkSnapshot) error {
	return s.awaitSnapshot(ctx, o.Name, func(now *v1alpha1.UblkSnapshot) (bool, error) {
		if now != nil && now.UID == o.UID {
			return false, snapshotTrouble(now)
		}
		if now != nil {
			return true, nil
		}
		current, err := s.liveSnapshot(ctx, o.Name)
		return err == nil && (current == nil || current.UID != o.UID), err
	})
}

// snapshotTrouble is poolTrouble of a snapshot that is being deleted.
func snapshotTrouble(o *v1alpha1.UblkSnapshot) error {
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.SnapshotReady)
	if o.DeletionTimestamp == nil || c == nil || c.ObservedGeneration != o.Generation ||
		c.Reason != v1alpha1.ReasonPoolFailed && c.Reason != v1alpha1.ReasonPoolMissing {
		return nil
	}
	return status.Errorf(codes.Unavailable, "snapshot %q: node %s can't remove it now: %s. It will when the pool works", o.Name, o.Spec.Node, c.Message)
}

// releaseSnapshot takes the finalizer off for a node that no longer exists.
func (s *Service) releaseSnapshot(ctx context.Context, o *v1alpha1.UblkSnapshot) error {
	now, err := s.liveSnapshot(ctx, o.Name)
	if err != nil || now == nil || now.UID != o.UID || !controllerutil.ContainsFinalizer(now, v1alpha1.SnapshotFinalizer) {
		return err
	}
	onTop := client.MergeFromWithOptions(now.DeepCopy(), client.MergeFromWithOptimisticLock{}) // of other finalizers
	controllerutil.RemoveFinalizer(now, v1alpha1.SnapshotFinalizer)
	if err := s.o.Client.Patch(ctx, now, onTop); client.IgnoreNotFound(err) != nil {
		return apiError(fmt.Errorf("release UblkSnapshot %s of vanished node %s: %w", o.Name, o.Spec.Node, err))
	}
	return nil
}

// deleteSnapshot deletes the object on these conditions; that it is gone is a success.
func (s *Service) deleteSnapshot(ctx context.Context, o *v1alpha1.UblkSnapshot, only client.Preconditions) error {
	if err := s.o.Client.Delete(ctx, o, only); client.IgnoreNotFound(err) != nil {
		return apiError(fmt.Errorf("delete UblkSnapshot %s: %w", o.Name, err))
	}
	return nil
}
