package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// ControllerModifyVolume changes the limits of a volume's rates, those that are given,
// and waits until its node has put them in force, under whoever uses the volume. A
// mistake in one of them leaves all as they were.
func (s *Service) ControllerModifyVolume(ctx context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	v, err := s.existing(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	release, err := s.locks.Acquire(v.Name, "ControllerModifyVolume")
	if err != nil {
		return nil, err
	}
	defer release()
	if v, err = s.existing(v.Name); err != nil { // as it is under the lock
		return nil, err
	}
	l, err := modified(limitsOf(v.Spec.Limits), r.GetMutableParameters())
	if err != nil {
		return nil, err
	}
	if err := s.modify(ctx, v, l); err != nil {
		return nil, err
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

func (s *Service) modify(ctx context.Context, v *v1alpha1.UblkVolume, l v1alpha1.VolumeLimits) error {
	if v.DeletionTimestamp != nil || v.Spec.State == v1alpha1.VolumeAbsent {
		return status.Errorf(codes.Aborted, "volume %q is being deleted on node %s", v.Name, v.Spec.Node)
	}
	if limitsOf(v.Spec.Limits) == l && inForce(v) {
		return nil
	}
	if why := s.silence(v.Spec.Node); why != "" {
		return status.Errorf(codes.Unavailable, "volume %q can't be changed now, on node %s: %s", v.Name, v.Spec.Node, why)
	}
	if limitsOf(v.Spec.Limits) != l {
		before, id := v.DeepCopy(), v.Name
		v.Spec.Limits = specLimits(l)
		// On top of whatever the node writes meanwhile.
		if err := s.o.Client.Patch(ctx, v, client.MergeFrom(before)); err != nil {
			return apiError(fmt.Errorf("set the limits of UblkVolume %s: %w", id, err))
		}
	}
	return s.awaitInForce(ctx, v)
}

// inForce says whether the node has answered v as it is, and keeps its limits.
func inForce(v *v1alpha1.UblkVolume) bool {
	return answered(v, v1alpha1.VolumeReady) != nil && limitsOf(v.Status.Limits) == limitsOf(v.Spec.Limits)
}

// awaitInForce waits for the node's answer to v, as it was last written.
func (s *Service) awaitInForce(ctx context.Context, v *v1alpha1.UblkVolume) error {
	seen := v
	err := s.await(ctx, v.Name, func(now *v1alpha1.UblkVolume) (bool, error) {
		if now == nil || now.UID != v.UID || now.DeletionTimestamp != nil {
			return false, status.Errorf(codes.Aborted, "volume %q was deleted while it was to be changed", v.Name)
		}
		if now.Generation < v.Generation {
			return false, nil // the cache does not show it yet
		}
		seen = now
		if inForce(now) {
			return true, nil
		}
		return false, poolTrouble(now, "change")
	})
	if ctxErr := ctxError(err); ctxErr != nil {
		state := "has not answered"
		if ready := answered(seen, v1alpha1.VolumeReady); ready != nil {
			state = "says " + because(ready.Reason, ready.Message)
		}
		return status.Errorf(driver.Code(ctxErr), "volume %q waits for node %s to put its limits in force; the node %s. The next call goes on waiting", v.Name, v.Spec.Node, state)
	}
	return err
}
