package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// SnapshotMetadata is the CSI snapshot metadata service for the snapshots of one node.
type SnapshotMetadata struct {
	csi.UnimplementedSnapshotMetadataServer
	// Pools are the node's.
	Pools *pool.Set
}

// maxTuples is the most that one message has: some 20 bytes each, so that it stays far
// below what gRPC takes.
const maxTuples = 4096

// GetMetadataAllocated streams the ranges of a snapshot that were written and not
// discarded.
func (s *SnapshotMetadata) GetMetadataAllocated(r *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	if err := checkSnapshot("snapshot_id", r.GetSnapshotId()); err != nil {
		return err
	}
	blocks, err := s.open(r.GetSnapshotId(), func(p *pool.Pool) (*pool.Blocks, error) { return p.AllocatedBlocks(r.GetSnapshotId()) })
	if err != nil {
		return err
	}
	defer blocks.Close()
	return sendBlocks(stream.Context(), blocks, r.GetStartingOffset(), r.GetMaxResults(), func(tuples []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataAllocatedResponse{
			BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: blocks.SizeBytes, BlockMetadata: tuples,
		})
	})
}

// GetMetadataDelta streams the ranges that were written or discarded between two
// snapshots of a volume. That they are of one volume is the caller's to know.
func (s *SnapshotMetadata) GetMetadataDelta(r *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	if err := errors.Join(checkSnapshot("base_snapshot_id", r.GetBaseSnapshotId()), checkSnapshot("target_snapshot_id", r.GetTargetSnapshotId())); err != nil {
		return err
	}
	blocks, err := s.open(r.GetTargetSnapshotId(), func(p *pool.Pool) (*pool.Blocks, error) {
		return p.ChangedBlocks(r.GetBaseSnapshotId(), r.GetTargetSnapshotId())
	})
	if err != nil {
		return err
	}
	defer blocks.Close()
	return sendBlocks(stream.Context(), blocks, r.GetStartingOffset(), r.GetMaxResults(), func(tuples []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataDeltaResponse{
			BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: blocks.SizeBytes, BlockMetadata: tuples,
		})
	})
}

// checkSnapshot refuses what can't be an id.
func checkSnapshot(field, id string) error {
	if id == "" {
		return &driver.InvalidError{Field: field, Problem: "is empty"}
	}
	if !driver.ValidVolumeID(id) {
		return fmt.Errorf("snapshot %q: %w", id, fs.ErrNotExist)
	}
	return nil
}

// open looks for the snapshot in all pools: its id is unique in the cluster.
func (s *SnapshotMetadata) open(id string, open func(*pool.Pool) (*pool.Blocks, error)) (*pool.Blocks, error) {
	missing := fmt.Errorf("snapshot %s, or the one that it is compared with, is in no pool of this node: %w", id, fs.ErrNotExist)
	for _, state := range s.Pools.States() {
		if state.Err != nil {
			// It may be there.
			missing = status.Errorf(codes.Unavailable, "snapshot %s: %v", id, state.Err)
			continue
		}
		blocks, err := open(state.Pool)
		if !errors.Is(err, fs.ErrNotExist) {
			return blocks, err
		}
	}
	return nil, missing
}

// sendBlocks sends at least one message, so that the caller learns the size.
func sendBlocks(ctx context.Context, blocks *pool.Blocks, from int64, limit int32, send func([]*csi.BlockMetadata) error) error {
	if from < 0 || from > blocks.SizeBytes {
		return status.Errorf(codes.OutOfRange, "starting_offset %d is not within the snapshot, which has %d bytes", from, blocks.SizeBytes)
	}
	if limit < 0 {
		return &driver.InvalidError{Field: "max_results", Problem: "is negative", Remedy: "0 leaves it to the driver"}
	}
	if limit == 0 || limit > maxTuples {
		limit = maxTuples
	}
	var tuples []*csi.BlockMetadata
	for r, err := range blocks.From(ctx, from) {
		if err != nil {
			return err
		}
		if len(tuples) == int(limit) {
			if err := send(tuples); err != nil {
				return err
			}
			tuples = nil
		}
		tuples = append(tuples, &csi.BlockMetadata{ByteOffset: r.Start, SizeBytes: r.End - r.Start})
	}
	return send(tuples)
}
