package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/capacity"
)

// describeSnapshot is a snapshot that was cut, as CSI shows it.
func describeSnapshot(o *v1alpha1.UblkSnapshot) *csi.Snapshot {
	d := &csi.Snapshot{
		SnapshotId: o.Name, SourceVolumeId: o.Spec.Volume, SizeBytes: o.Spec.SizeBytes, GroupSnapshotId: o.Spec.Group,
		ReadyToUse: meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.SnapshotReady),
	}
	if o.Status.CreatedAt != nil {
		d.CreationTime = timestamppb.New(o.Status.CreatedAt.Time)
	}
	return d
}

// cachedSnapshot returns the snapshot from memory, nil if there is none.
func (s *Service) cachedSnapshot(id string) (*v1alpha1.UblkSnapshot, error) {
	return readSnapshot(context.Background(), s.o.Client, id)
}

// liveSnapshot returns the snapshot from the API server, nil if there is none.
func (s *Service) liveSnapshot(ctx context.Context, id string) (*v1alpha1.UblkSnapshot, error) {
	return readSnapshot(ctx, s.o.Live, id)
}

func readSnapshot(ctx context.Context, from client.Reader, id string) (*v1alpha1.UblkSnapshot, error) {
	o := &v1alpha1.UblkSnapshot{}
	err := from.Get(ctx, client.ObjectKey{Name: id}, o)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, apiError(fmt.Errorf("read UblkSnapshot %s: %w", id, err))
	}
	return o, nil
}

func (s *Service) awaitSnapshot(ctx context.Context, id string, check func(*v1alpha1.UblkSnapshot) (done bool, err error)) error {
	return awaitObject(ctx, &s.waiters, snapshotKey(id), func() (*v1alpha1.UblkSnapshot, error) { return s.cachedSnapshot(id) }, check)
}

func (s *Service) snapshotSeen(o *v1alpha1.UblkSnapshot) {
	bytes := o.Status.AllocatedBytes
	if o.Status.CreatedAt == nil {
		// Not cut yet: what its volume has, as far as is known.
		if v, err := s.cached(o.Spec.Volume); err == nil && v != nil {
			bytes = v.Status.AllocatedBytes
		}
	}
	s.o.Ledger.SetVolume(capacity.Volume{
		Name:  snapshotKey(o.Name),
		UID:   string(o.UID),
		Place: capacity.Place{Node: o.Spec.Node, Pool: o.Spec.Pool},
		Bytes: bytes,
	})
	s.waiters.wake(snapshotKey(o.Name))
}

func (s *Service) snapshotGone(o *v1alpha1.UblkSnapshot) {
	s.o.Ledger.DeleteVolume(snapshotKey(o.Name), string(o.UID))
	s.waiters.wake(snapshotKey(o.Name))
}
