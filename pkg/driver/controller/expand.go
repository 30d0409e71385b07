package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/capacity"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// ControllerExpandVolume reserves what a volume is to have more, writes its new size
// and waits until its node has made the file larger, and the device if there is one.
// What the node's pool has no room for is OUT_OF_RANGE, with the size that there is room
// for: that lets the claim's owner ask for less. A volume that is large enough is a
// success.
func (s *Service) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if r.GetCapacityRange() == nil {
		return nil, &driver.InvalidError{Field: "capacity_range", Problem: "is missing", Remedy: "say how large the volume is to be"}
	}
	least := int64(leastBlockBytes)
	if c := r.GetVolumeCapability(); c != nil { // optional
		var err error
		if least, err = checkCapabilities([]*csi.VolumeCapability{c}); err != nil {
			return nil, err
		}
	}
	v, err := s.existing(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	release, err := s.locks.Acquire(v.Name, "ControllerExpandVolume")
	if err != nil {
		return nil, err
	}
	defer release()
	if v, err = s.existing(v.Name); err != nil { // as it is under the lock
		return nil, err
	}
	bytes, err := grownBytes(r.GetCapacityRange(), v, least)
	if err != nil {
		return nil, err
	}
	if v, err = s.expand(ctx, v, bytes); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Status.CapacityBytes, NodeExpansionRequired: true}, nil
}

// grownBytes is the size that a volume is to have for a capacity range, which is never
// less than what its file has.
func grownBytes(r *csi.CapacityRange, v *v1alpha1.UblkVolume, least int64) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required == 0 && limit == 0 {
		return 0, &driver.InvalidError{Field: "capacity_range", Problem: "is empty", Remedy: "say how large the volume is to be"}
	}
	has := v.Status.CapacityBytes
	if has == 0 {
		has = v.Spec.CapacityBytes // the node plugin is older than this controller
	}
	if required < 0 || required > has || limit < 0 || limit > 0 && limit < required {
		return volumeBytes(r, least) // which checks them
	}
	if limit > 0 && limit < has {
		return 0, status.Errorf(codes.OutOfRange, "volume %q has %d bytes, and %d are the limit: a volume is never made smaller", v.Name, has, limit)
	}
	return has, nil
}

// expand returns the volume when its file has at least so many bytes.
func (s *Service) expand(ctx context.Context, v *v1alpha1.UblkVolume, bytes int64) (*v1alpha1.UblkVolume, error) {
	if v.DeletionTimestamp != nil || v.Spec.State == v1alpha1.VolumeAbsent {
		return nil, status.Errorf(codes.Aborted, "volume %q is being deleted on node %s", v.Name, v.Spec.Node)
	}
	if growthRefused(v) != "" {
		// By an earlier call, which ended before it could do this. Also if the claim's owner
		// has settled for what there is: else the bytes would be held for good.
		enough := hasGrown(v, bytes)
		if err := s.takeBackGrowth(ctx, v); err != nil || enough {
			return v, err
		}
	}
	if hasGrown(v, bytes) {
		return v, nil
	}
	if why := s.silence(v.Spec.Node); why != "" {
		return nil, status.Errorf(codes.Unavailable, "volume %q can't grow now, on node %s: %s", v.Name, v.Spec.Node, why)
	}
	if v.Spec.CapacityBytes < bytes {
		if err := s.promise(ctx, v, bytes); err != nil {
			return nil, err
		}
	}
	return s.awaitGrown(ctx, v, bytes)
}

// hasGrown says whether the node has answered v as it is, with a file of so many bytes.
func hasGrown(v *v1alpha1.UblkVolume, bytes int64) bool {
	ready := answered(v, v1alpha1.VolumeReady)
	return ready != nil && ready.Status == metav1.ConditionTrue && v.Status.CapacityBytes >= bytes
}

// promise reserves the bytes and writes the new size, and makes v what was written.
func (s *Service) promise(ctx context.Context, v *v1alpha1.UblkVolume, bytes int64) error {
	was := ledgerVolume(v)
	if err := s.o.Ledger.Grow(was, bytes); err != nil {
		return growthError(v.Name, err)
	}
	if err := s.setCapacity(ctx, v, bytes); err != nil {
		// It may have been written all the same: then the watch will show it, and the
		// next call continues with it.
		s.o.Ledger.StopGrowing(was)
		return err
	}
	return nil
}

// setCapacity writes spec.capacityBytes, on top of whatever the node writes meanwhile,
// and makes v what was written.
func (s *Service) setCapacity(ctx context.Context, v *v1alpha1.UblkVolume, bytes int64) error {
	before, id := v.DeepCopy(), v.Name
	v.Spec.CapacityBytes = bytes
	err := s.o.Client.Patch(ctx, v, client.MergeFrom(before))
	switch {
	case err == nil:
		return nil
	case apierrors.IsInvalid(err), apierrors.IsNotFound(err):
		// Less than its file has, which has changed since it was looked at.
		return status.Errorf(codes.Aborted, "volume %q was changed meanwhile; retry: %v", id, err)
	}
	return apiError(fmt.Errorf("set the size of UblkVolume %s: %w", id, err))
}

// growthError makes an answer of the ledger's: OUT_OF_RANGE if less would do,
// UNAVAILABLE if the pool does not work now.
func growthError(volume string, err error) error {
	var e *capacity.GrowthError
	if !errors.As(err, &e) {
		return err
	}
	if e.Refusal != "" {
		return status.Errorf(codes.Unavailable, "volume %q: %v", volume, err)
	}
	return status.Errorf(codes.OutOfRange, "volume %q: %v. Ask for at most %dMi, or make room in the pool", volume, err, e.MostBytes()/mib)
}

// awaitGrown waits for the node's answer to v, as it was last written.
func (s *Service) awaitGrown(ctx context.Context, v *v1alpha1.UblkVolume, bytes int64) (*v1alpha1.UblkVolume, error) {
	seen := v
	err := s.await(ctx, v.Name, func(now *v1alpha1.UblkVolume) (bool, error) {
		if now == nil || now.UID != v.UID || now.DeletionTimestamp != nil || now.Spec.State == v1alpha1.VolumeAbsent {
			return false, status.Errorf(codes.Aborted, "volume %q was deleted while it was to grow", v.Name)
		}
		if now.Generation < v.Generation {
			return false, nil // the cache does not show it yet
		}
		seen = now
		if hasGrown(now, bytes) || growthRefused(now) != "" {
			return true, nil
		}
		return false, poolTrouble(now, "grow")
	})
	if ctxErr := ctxError(err); ctxErr != nil {
		return nil, s.lateGrowth(seen, bytes, ctxErr)
	}
	if err != nil {
		return nil, err
	}
	if why := growthRefused(seen); why != "" && !hasGrown(seen, bytes) {
		if err := s.takeBackGrowth(ctx, seen); err != nil {
			return nil, err
		}
		return nil, status.Errorf(codes.OutOfRange, "volume %q: node %s can't grow it: %s. Ask for less, or make room in the pool", v.Name, v.Spec.Node, why)
	}
	return seen, nil
}

// growthRefused is the node's answer that its pool has no room; "" if it is another.
func growthRefused(v *v1alpha1.UblkVolume) string {
	ready := answered(v, v1alpha1.VolumeReady)
	if ready == nil || ready.Status != metav1.ConditionTrue || ready.Reason != v1alpha1.ReasonPoolFull {
		return ""
	}
	return ready.Message
}

// takeBackGrowth gives a volume the size again that its file has: the node had less
// room than the ledger knew of. Otherwise the claim could never ask for less.
func (s *Service) takeBackGrowth(ctx context.Context, v *v1alpha1.UblkVolume) error {
	if err := s.setCapacity(ctx, v, v.Status.CapacityBytes); err != nil {
		return err
	}
	s.o.Ledger.StopGrowing(ledgerVolume(v))
	return nil
}

// lateGrowth is the answer when the time for waiting is up.
func (s *Service) lateGrowth(v *v1alpha1.UblkVolume, bytes int64, cause error) error {
	state := "has not answered"
	if ready := answered(v, v1alpha1.VolumeReady); ready != nil {
		state = "says " + because(ready.Reason, ready.Message)
	}
	return status.Errorf(driver.Code(cause), "volume %q waits for node %s to grow it to %d bytes; the node %s. The next call goes on waiting", v.Name, v.Spec.Node, bytes, state)
}
