package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// DeleteVolume asks the volume's node to remove the file (spec.state Absent) and
// deletes the object when that is done. If the volume is in use the request is
// taken back and nothing has changed. An unknown id is a success.
func (s *Service) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := r.GetVolumeId()
	if id == "" {
		return nil, &driver.InvalidError{Field: "volume_id", Problem: "is empty"}
	}
	if !driver.ValidVolumeID(id) {
		return &csi.DeleteVolumeResponse{}, nil
	}
	release, err := s.locks.Acquire(id, "DeleteVolume")
	if err != nil {
		return nil, err
	}
	defer release()
	// Read past the cache: a volume just made may not be in it, and an OK for a
	// volume that exists would leave it there for ever.
	v, err := s.live(ctx, id)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err := s.remove(ctx, v); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// remove returns nil when the object is gone.
func (s *Service) remove(ctx context.Context, v *v1alpha1.UblkVolume) error {
	gone, err := s.nodeGone(ctx, v.Spec.Node)
	if err != nil {
		return err
	}
	if gone {
		return s.forget(ctx, v)
	}
	if v.DeletionTimestamp == nil && v.Spec.State != v1alpha1.VolumeAbsent {
		// On top of whatever the node writes meanwhile.
		if err := s.setState(ctx, v, v1alpha1.VolumeAbsent, client.MergeFrom(v.DeepCopy())); err != nil {
			return apiError(err)
		}
	}
	if why := s.silence(v.Spec.Node); why != "" {
		return s.removeSilent(ctx, v, why)
	}
	return s.awaitRemoved(ctx, v)
}

// removeSilent is for a node that can't be expected to answer. The request stays
// on record and is done when the node is back; the caller is told at once rather
// than at its deadline, with a code that makes the provisioner come again.
func (s *Service) removeSilent(ctx context.Context, v *v1alpha1.UblkVolume, why string) error {
	short, cancel := context.WithTimeout(ctx, time.Second) // it may be done already
	defer cancel()
	err := s.awaitRemoved(short, v)
	if driver.Code(err) != codes.DeadlineExceeded {
		return err
	}
	return status.Errorf(codes.Unavailable, "volume %q: node %s can't remove it now: %s. It will when it is back; if it never comes back, delete the Node object and the volume goes with it", v.Name, v.Spec.Node, why)
}

// awaitRemoved waits for the node's answer to v, as it was last written.
func (s *Service) awaitRemoved(ctx context.Context, v *v1alpha1.UblkVolume) error {
	var last *v1alpha1.UblkVolume
	err := s.await(ctx, v.Name, func(now *v1alpha1.UblkVolume) (bool, error) {
		last = now
		switch {
		case now == nil:
			// The cache may be behind: only a read past it tells gone from not
			// seen yet. Once seen it will be woken again.
			current, err := s.live(ctx, v.Name)
			return err == nil && (current == nil || current.UID != v.UID), err
		case now.UID != v.UID:
			return true, nil
		case now.Generation < v.Generation:
			return false, nil
		case !controllerutil.ContainsFinalizer(now, v1alpha1.VolumeFinalizer):
			return true, nil
		}
		if inUse := answered(now, v1alpha1.VolumeInUse); inUse != nil && inUse.Status == metav1.ConditionTrue {
			return true, nil
		}
		return false, poolTrouble(now, "remove")
	})
	if ctxErr := ctxError(err); ctxErr != nil {
		return status.Errorf(driver.Code(ctxErr), "volume %q waits for node %s to remove it; the removal goes on", v.Name, v.Spec.Node)
	}
	if err != nil {
		return err
	}
	if last == nil || last.UID != v.UID {
		return nil
	}
	if controllerutil.ContainsFinalizer(last, v1alpha1.VolumeFinalizer) {
		return s.takeBack(ctx, last)
	}
	return s.deleteSeen(ctx, last)
}

// poolTrouble is the node's answer that its pool keeps it from what it was asked to do to
// v, as the error of the call; nil without one. Whoever mends the pool takes longer than a
// call waits.
func poolTrouble(v *v1alpha1.UblkVolume, do string) error {
	ready := answered(v, v1alpha1.VolumeReady)
	if ready == nil || ready.Reason != v1alpha1.ReasonPoolFailed && ready.Reason != v1alpha1.ReasonPoolMissing {
		return nil
	}
	return status.Errorf(codes.Unavailable, "volume %q: node %s can't %s it now: %s. It will when the pool works", v.Name, v.Spec.Node, do, ready.Message)
}

// takeBack undoes the request to remove a volume that is in use. The deletion of
// the object itself can't be undone.
func (s *Service) takeBack(ctx context.Context, v *v1alpha1.UblkVolume) error {
	why := answered(v, v1alpha1.VolumeInUse).Message
	then := "nothing was removed"
	for v.DeletionTimestamp == nil {
		// Not over a change that was not looked at: the node may have removed the
		// volume after all.
		err := s.setState(ctx, v, v1alpha1.VolumePresent, client.MergeFromWithOptions(v.DeepCopy(), client.MergeFromWithOptimisticLock{}))
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) {
			return apiError(err)
		}
		now, err := s.live(ctx, v.Name)
		if err != nil || now == nil || now.UID != v.UID {
			return err
		}
		if v = now; !controllerutil.ContainsFinalizer(v, v1alpha1.VolumeFinalizer) {
			return s.deleteSeen(ctx, v)
		}
	}
	if v.DeletionTimestamp != nil {
		then = "its UblkVolume is being deleted, and is gone when nobody uses it any more"
	}
	return status.Errorf(codes.FailedPrecondition, "volume %q is in use on node %s (%s): %s. Delete the pod that uses it first", v.Name, v.Spec.Node, why, then)
}

// setState writes spec.state as a patch, and makes v what was written.
func (s *Service) setState(ctx context.Context, v *v1alpha1.UblkVolume, state v1alpha1.VolumeState, patch client.Patch) error {
	v.Spec.State = state
	if err := s.o.Client.Patch(ctx, v, patch); err != nil {
		return fmt.Errorf("set UblkVolume %s to %s: %w", v.Name, state, err)
	}
	return nil
}

// deleteSeen deletes an object that nothing holds any more, and waits until the
// cache shows it: the next call for the name must not find a shadow.
func (s *Service) deleteSeen(ctx context.Context, v *v1alpha1.UblkVolume) error {
	if err := s.delete(ctx, v, client.Preconditions{UID: &v.UID}); err != nil {
		return err
	}
	s.awaitGone(ctx, v)
	return nil
}

func (s *Service) awaitGone(ctx context.Context, v *v1alpha1.UblkVolume) {
	_ = s.await(ctx, v.Name, func(now *v1alpha1.UblkVolume) (bool, error) { return now == nil || now.UID != v.UID, nil })
}

// forget removes the object of a volume whose node no longer exists: there is
// nobody left to remove the file.
func (s *Service) forget(ctx context.Context, v *v1alpha1.UblkVolume) error {
	if err := s.delete(ctx, v, client.Preconditions{UID: &v.UID}); err != nil {
		return err
	}
	defer s.awaitGone(ctx, v)
	now, err := s.live(ctx, v.Name)
	if err != nil || now == nil || now.UID != v.UID || !controllerutil.ContainsFinalizer(now, v1alpha1.VolumeFinalizer) {
		return err
	}
	onTop := client.MergeFromWithOptions(now.DeepCopy(), client.MergeFromWithOptimisticLock{}) // of other finalizers
	controllerutil.RemoveFinalizer(now, v1alpha1.VolumeFinalizer)
	err = s.o.Client.Patch(ctx, now, onTop)
	if client.IgnoreNotFound(err) != nil {
		return apiError(fmt.Errorf("release UblkVolume %s of vanished node %s: %w", v.Name, v.Spec.Node, err))
	}
	return nil
}

// delete deletes the object on these conditions; that it is gone is a success.
func (s *Service) delete(ctx context.Context, v *v1alpha1.UblkVolume, only client.Preconditions) error {
	if err := s.o.Client.Delete(ctx, v, only); client.IgnoreNotFound(err) != nil {
		return apiError(fmt.Errorf("delete UblkVolume %s: %w", v.Name, err))
	}
	return nil
}

// nodeGone says whether the Kubernetes node does not exist. The cache alone is
// not trusted with that: what follows can't be undone.
func (s *Service) nodeGone(ctx context.Context, name string) (bool, error) {
	for _, from := range []client.Reader{s.o.Client, s.o.Live} {
		err := from.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
		if err == nil {
			return false, nil
		}
		if !apierrors.IsNotFound(err) {
			return false, apiError(fmt.Errorf("read Node %s: %w", name, err))
		}
	}
	return true, nil
}
