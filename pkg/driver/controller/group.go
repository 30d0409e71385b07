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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/capacity"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// wantedGroup is a CreateVolumeGroupSnapshot request that passed all checks.
type wantedGroup struct {
	name, id string
	volumes  []string
	members  []string // ids of the snapshots, in the order of volumes
}

// GroupControllerGetCapabilities lists what is offered.
func (s *Service) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	t := csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{Type: t}},
	}}}, nil
}

// CreateVolumeGroupSnapshot cuts several volumes of one node at one moment. It is all
// or nothing: what could not be cut together is removed again.
func (s *Service) CreateVolumeGroupSnapshot(ctx context.Context, r *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	w, err := parseGroup(r)
	if err != nil {
		return nil, err
	}
	release, err := s.lockSnapshot("group/"+w.id, "CreateVolumeGroupSnapshot")
	if err != nil {
		return nil, err
	}
	defer release()
	objects, err := s.ensureGroup(ctx, w)
	if err == nil {
		objects, err = s.awaitGroup(ctx, objects)
	}
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: describeGroup(w.id, objects)}, nil
}

func parseGroup(r *csi.CreateVolumeGroupSnapshotRequest) (wantedGroup, error) {
	w := wantedGroup{name: r.GetName(), id: driver.VolumeID(r.GetName()), volumes: r.GetSourceVolumeIds()}
	if err := checkName("name", w.name); err != nil {
		return w, err
	}
	if len(w.volumes) == 0 {
		return w, &driver.InvalidError{Field: "source_volume_ids", Problem: "is empty"}
	}
	for i, v := range w.volumes {
		field := fmt.Sprintf("source_volume_ids[%d]", i)
		if v == "" {
			return w, &driver.InvalidError{Field: field, Problem: "is empty"}
		}
		if slices.Contains(w.volumes[:i], v) {
			return w, &driver.InvalidError{Field: field, Problem: v + " is there twice"}
		}
		// No name of a single snapshot gives such an id: with a slash it is hashed.
		w.members = append(w.members, driver.VolumeID(w.name+"/"+v))
	}
	for _, key := range slices.Sorted(maps.Keys(r.GetParameters())) {
		if !strings.HasPrefix(key, paramForeign) {
			return w, &driver.InvalidError{Field: fmt.Sprintf("parameters[%q]", key), Problem: "is not a parameter of this driver",
				Remedy: "a VolumeGroupSnapshotClass has none"}
		}
	}
	return w, nil
}

// ensureGroup returns the objects for what is wanted, existing or new.
func (s *Service) ensureGroup(ctx context.Context, w wantedGroup) ([]*v1alpha1.UblkSnapshot, error) {
	existing, err := s.groupMembers(ctx, w.id)
	if err != nil {
		return nil, err
	}
	for _, o := range existing {
		if err := sameGroup(o, w); err != nil {
			return nil, err
		}
	}
	if len(existing) == len(w.members) {
		return existing, nil
	}
	if slices.ContainsFunc(existing, listed) {
		return nil, status.Errorf(codes.AlreadyExists, "group snapshot %q exists, and part of it has been deleted; use another name", w.name)
	}
	sources, err := s.groupSources(ctx, w)
	if err != nil {
		return nil, err
	}
	var objects []*v1alpha1.UblkSnapshot
	for i, v := range sources {
		o, err := s.ensureMember(ctx, w, w.members[i], v)
		if err != nil {
			return nil, s.giveUpGroup(ctx, objects, err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// groupSources reads the volumes, which must be on one node: only there can they be
// held back together.
func (s *Service) groupSources(ctx context.Context, w wantedGroup) ([]*v1alpha1.UblkVolume, error) {
	var sources []*v1alpha1.UblkVolume
	for _, id := range w.volumes {
		v, err := s.sourceVolume(ctx, "source_volume_ids", id)
		if err != nil {
			return nil, err
		}
		if first := append(sources, v)[0]; first.Spec.Node != v.Spec.Node {
			return nil, status.Errorf(codes.FailedPrecondition, "group snapshot %q: volume %s is on node %s and volume %s on node %s; volumes can be cut together only on one node", w.name, first.Name, first.Spec.Node, v.Name, v.Spec.Node)
		}
		if err := s.checkSourceNode(ctx, v); err != nil {
			return nil, err
		}
		if err := s.checkReflink(capacity.Place{Node: v.Spec.Node, Pool: v.Spec.Pool}); err != nil {
			return nil, err
		}
		sources = append(sources, v)
	}
	return sources, nil
}

// ensureMember holds the bytes of one member and writes its object, or returns the one
// that is there.
func (s *Service) ensureMember(ctx context.Context, w wantedGroup, id string, v *v1alpha1.UblkVolume) (*v1alpha1.UblkSnapshot, error) {
	at, key := capacity.Place{Node: v.Spec.Node, Pool: v.Spec.Pool}, snapshotKey(id)
	o, err := s.liveSnapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	if o != nil {
		return o, sameGroup(o, w)
	}
	if err := s.o.Ledger.Hold(key, at, v.Status.AllocatedBytes); err != nil {
		return nil, err
	}
	o = &v1alpha1.UblkSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: id, Finalizers: []string{v1alpha1.SnapshotFinalizer}},
		Spec: v1alpha1.UblkSnapshotSpec{
			Volume: v.Name, Node: at.Node, Pool: at.Pool, CSIName: id, SizeBytes: fileBytes(v),
			Group: w.id, GroupMembers: w.members,
		},
	}
	if err = s.o.Client.Create(ctx, o); err == nil {
		s.o.Ledger.Commit(key, string(o.UID))
		return o, nil
	}
	s.o.Ledger.Release(key)
	if apierrors.IsAlreadyExists(err) {
		return nil, status.Errorf(codes.Aborted, "snapshot %q of group %q is being made or deleted by another call; retry", id, w.id)
	}
	return nil, apiError(fmt.Errorf("write UblkSnapshot %s: %w", id, err))
}

func sameGroup(o *v1alpha1.UblkSnapshot, w wantedGroup) error {
	if o.DeletionTimestamp != nil {
		return status.Errorf(codes.Aborted, "group snapshot %q is being deleted on node %s; retry when it is gone", w.id, o.Spec.Node)
	}
	if o.Spec.Group != w.id || !sameSet(o.Spec.GroupMembers, w.members) {
		return status.Errorf(codes.AlreadyExists, "group snapshot %q exists and differs: it is of other volumes, %s among them", w.name, o.Spec.Volume)
	}
	return nil
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// awaitGroup waits until all members are cut. When one can't be, all go.
func (s *Service) awaitGroup(ctx context.Context, objects []*v1alpha1.UblkSnapshot) ([]*v1alpha1.UblkSnapshot, error) {
	cut := make([]*v1alpha1.UblkSnapshot, len(objects))
	for i, o := range objects {
		var err error
		if cut[i], err = s.awaitCut(ctx, o); err != nil {
			return nil, s.giveUpGroup(ctx, objects, err)
		}
	}
	return cut, nil
}

// giveUpGroup removes what there is of a group because of an error that is final, and
// returns that. After any other the objects stay, and the next call goes on.
func (s *Service) giveUpGroup(ctx context.Context, objects []*v1alpha1.UblkSnapshot, cause error) error {
	switch driver.Code(cause) {
	case codes.DeadlineExceeded, codes.Canceled, codes.Unavailable:
		return cause
	}
	for _, o := range objects {
		if err := s.deleteSnapshot(ctx, o, client.Preconditions{UID: &o.UID}); err != nil {
			return err
		}
	}
	for _, o := range objects {
		_ = s.awaitSnapshotGone(ctx, o)
	}
	return cause
}
