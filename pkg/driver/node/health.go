package node

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/health"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// NodeGetVolumeHealth says what is wrong with a volume on this node: one that is attached,
// or whose file is in a pool here. It takes no lock and reads memory and mounts only.
func (s *Service) NodeGetVolumeHealth(ctx context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	paths := []string{r.GetStagingTargetPath(), r.GetVolumePublishPath()}
	for i, field := range []string{"staging_target_path", "volume_publish_path"} {
		if paths[i] != "" && !filepath.IsAbs(paths[i]) {
			return nil, &driver.InvalidError{Field: field, Problem: fmt.Sprintf("%q is not absolute", paths[i])}
		}
	}
	id := localID(r.GetVolumeId())
	var problems []health.Problem
	device, err := s.o.Devices.Get(ctx, id)
	switch driver.Code(err) {
	case codes.OK:
		problems = append(deviceProblems(device), s.o.Watch.Problems(id)...)
	case codes.Unavailable:
		problems = append(s.o.Watch.Problems(id), health.Problem{Reason: health.ServerUnavailable, Message: err.Error()})
	case codes.NotFound:
		problems, err = s.detachedProblems(id, paths)
		if err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("volume %s: %w", r.GetVolumeId(), err)
	}
	if p, ok := s.poolOf(id); ok {
		problems = append(problems, poolFull(p)...)
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health.Volume(r.GetVolumeId(), problems)}, nil
}

// detachedProblems is about a volume without a device: all is well with it if it has a file
// here and nobody uses it.
func (s *Service) detachedProblems(id string, paths []string) ([]health.Problem, error) {
	for _, path := range paths {
		if path == "" {
			continue
		}
		if at, err := mount.At(path); err == nil && at.Mounted {
			return []health.Problem{{Reason: health.DeviceGone, Message: fmt.Sprintf("%s is mounted and the device server has no device of the volume", path)}}, nil
		}
	}
	if _, here := s.poolOf(id); !here {
		return nil, fmt.Errorf("volume %s is not on this node: %w", id, fs.ErrNotExist)
	}
	return nil, nil
}

// poolOf finds the pool that has a volume's file.
func (s *Service) poolOf(id string) (*pool.Pool, bool) {
	for _, state := range s.o.Pools.States() {
		if state.Pool != nil && state.Pool.Has(id) {
			return state.Pool, true
		}
	}
	return nil, false
}

func poolFull(p *pool.Pool) []health.Problem {
	u, err := p.Usage()
	switch {
	case err != nil:
		return []health.Problem{{Reason: health.PoolFailed, Message: err.Error()}}
	case health.Full(u.FreeBytes):
		return []health.Problem{{Reason: health.PoolFull, Message: fmt.Sprintf("pool %s has %d bytes left", p.Name(), u.FreeBytes)}}
	}
	return nil
}

// NodeGetStorageHealth says what is wrong with this node's pools and with its device
// server. One reason is named once, for all pools that it is about.
func (s *Service) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	r := &csi.NodeGetStorageHealthResponse{}
	add := func(status csi.StorageHealthErrorType, reason, message string) {
		for _, b := range r.BackendHealth {
			if b.Reason == reason {
				b.Message += "; " + message
				return
			}
		}
		r.BackendHealth = append(r.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: status, Reason: reason, Message: message})
	}
	info, err := s.o.Devices.Info(ctx)
	switch {
	case err != nil:
		add(csi.StorageHealthErrorType_STORAGE_UNREACHABLE, string(health.ServerUnavailable), fmt.Sprintf("the device server does not answer: %v", err))
	case info.Wedged:
		add(csi.StorageHealthErrorType_STORAGE_DEGRADED, "KernelWedged", info.WedgedMessage)
	}
	for _, p := range s.o.Pools.States() {
		if p.Err != nil {
			add(csi.StorageHealthErrorType_STORAGE_UNREACHABLE, string(health.PoolFailed), p.Err.Error())
			continue
		}
		for _, problem := range poolFull(p.Pool) {
			add(csi.StorageHealthErrorType_STORAGE_DEGRADED, string(problem.Reason), problem.Message)
		}
	}
	return r, nil
}
