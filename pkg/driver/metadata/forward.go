package metadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// Forwarder is the CSI snapshot metadata service for the whole cluster: it finds the
// node of a snapshot and asks there. It keeps nothing, so any number may run.
type Forwarder struct {
	csi.UnimplementedSnapshotMetadataServer
	// Client reads UblkSnapshots and UblkNodes.
	Client client.Reader
	// TokenFile has a token of the service account for Audience.
	TokenFile string
}

// GetMetadataAllocated streams the ranges of a snapshot that were written and not
// discarded.
func (f *Forwarder) GetMetadataAllocated(r *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	s, err := f.snapshot(stream.Context(), "snapshot_id", r.GetSnapshotId())
	if err != nil {
		return err
	}
	return f.ask(stream.Context(), s, func(ctx context.Context, node csi.SnapshotMetadataClient) error {
		from, err := node.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{
			SnapshotId: s.Name, StartingOffset: r.GetStartingOffset(), MaxResults: r.GetMaxResults(),
		})
		if err != nil {
			return err
		}
		return relay(from.Recv, stream.Send)
	})
}

// GetMetadataDelta streams the ranges that were written or discarded between two
// snapshots of one volume.
func (f *Forwarder) GetMetadataDelta(r *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	base, err := f.snapshot(stream.Context(), "base_snapshot_id", r.GetBaseSnapshotId())
	if err != nil {
		return err
	}
	target, err := f.snapshot(stream.Context(), "target_snapshot_id", r.GetTargetSnapshotId())
	if err != nil {
		return err
	}
	if err := checkPair(base, target); err != nil {
		return err
	}
	return f.ask(stream.Context(), target, func(ctx context.Context, node csi.SnapshotMetadataClient) error {
		from, err := node.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{
			BaseSnapshotId: base.Name, TargetSnapshotId: target.Name, StartingOffset: r.GetStartingOffset(), MaxResults: r.GetMaxResults(),
		})
		if err != nil {
			return err
		}
		return relay(from.Recv, stream.Send)
	})
}

// checkPair refuses snapshots that can't be compared.
func checkPair(base, target *v1alpha1.UblkSnapshot) error {
	b, t := base.Spec, target.Spec
	if b.Volume != t.Volume || b.Node != t.Node || b.Pool != t.Pool {
		return &driver.InvalidError{Field: "base_snapshot_id", Problem: fmt.Sprintf("snapshot %s is of volume %s, and %s of volume %s", base.Name, b.Volume, target.Name, t.Volume),
			Remedy: "name two snapshots of one volume"}
	}
	if target.Status.CreatedAt.Time.Before(base.Status.CreatedAt.Time) {
		return &driver.InvalidError{Field: "base_snapshot_id", Problem: fmt.Sprintf("snapshot %s was cut after %s", base.Name, target.Name), Remedy: "the earlier one is the base"}
	}
	return nil
}

// snapshot returns one that was cut and is not being deleted.
func (f *Forwarder) snapshot(ctx context.Context, field, id string) (*v1alpha1.UblkSnapshot, error) {
	if id == "" {
		return nil, &driver.InvalidError{Field: field, Problem: "is empty"}
	}
	missing := status.Errorf(codes.NotFound, "snapshot %q does not exist", id)
	if !driver.ValidVolumeID(id) {
		return nil, missing
	}
	s := &v1alpha1.UblkSnapshot{}
	err := f.Client.Get(ctx, client.ObjectKey{Name: id}, s)
	switch {
	case apierrors.IsNotFound(err):
		return nil, missing
	case err != nil:
		return nil, unavailable(ctx, "read UblkSnapshot %s: %v", id, err)
	case s.DeletionTimestamp != nil || s.Status.CreatedAt == nil:
		return nil, missing
	}
	return s, nil
}

// ask connects to the node of a snapshot. An error of the node is an error of the call.
func (f *Forwarder) ask(ctx context.Context, s *v1alpha1.UblkSnapshot, call func(context.Context, csi.SnapshotMetadataClient) error) error {
	node := &v1alpha1.UblkNode{}
	if err := f.Client.Get(ctx, client.ObjectKey{Name: s.Spec.Node}, node); err != nil {
		return unavailable(ctx, "find node %s of snapshot %s: %v", s.Spec.Node, s.Name, err)
	}
	at := node.Status.SnapshotMetadata
	if at == nil {
		return status.Errorf(codes.Unavailable, "the plugin of node %s tells nothing of its snapshots' blocks: it has not started yet, or without --snapshot-metadata-address", node.Name)
	}
	conn, err := grpc.NewClient("passthrough:///"+at.Address,
		grpc.WithTransportCredentials(credentials.NewTLS(pinned(at.CertificateSHA256))),
		grpc.WithPerRPCCredentials(tokenFile(f.TokenFile)),
		grpc.WithNoProxy(), // nodes are in the cluster, whatever the environment says
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}),
	)
	if err != nil {
		return fmt.Errorf("connect to node %s at %s: %w", node.Name, at.Address, err)
	}
	defer conn.Close()
	return ofNode(node.Name, call(ctx, csi.NewSnapshotMetadataClient(conn)))
}

// ofNode says whose an error is. That the node does not take our token is not the
// caller's fault.
func ofNode(node string, err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	code := s.Code()
	if code == codes.Unauthenticated || code == codes.PermissionDenied {
		code = codes.Internal
	}
	return status.Errorf(code, "node %s: %s", node, s.Message())
}

// unavailable is for what a later call may find otherwise, unless the caller has gone.
func unavailable(ctx context.Context, format string, args ...any) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return status.Errorf(codes.Unavailable, format, args...)
}

// relay passes on messages until there are no more.
func relay[T any](recv func() (*T, error), send func(*T) error) error {
	for {
		message, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := send(message); err != nil {
			return err
		}
	}
}
