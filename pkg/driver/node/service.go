// Package node is the CSI node service: it has volumes attached by the device
// server of its node, and makes, mounts and publishes file systems on them, or
// publishes the device itself.
//
// Stage and unstage, publish and unpublish need the device server and the kernel
// only, never the API server: all that they must know is in the request. No lock
// is wider than one volume.
package node

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

// Devices is the device server. Errors are gRPC statuses, or wrap them, with the
// codes that the server's API documents.
type Devices interface {
	// Attach is idempotent: a volume that is attached keeps its device.
	Attach(ctx context.Context, volumeID string, o client.AttachOptions) (client.Device, error)
	// Detach returns when /dev/ublkbN is gone. OK if the volume is not attached.
	Detach(ctx context.Context, volumeID string) error
	// Get returns one volume's device, or NOT_FOUND.
	Get(ctx context.Context, volumeID string) (client.Device, error)
	// Resize makes the device as large as its file, and returns that size; 0 if the
	// volume is not attached. UNIMPLEMENTED: the kernel can't.
	Resize(ctx context.Context, volumeID string) (sizeBytes uint64, err error)
	// Info says how many devices there may be.
	Info(ctx context.Context) (client.Info, error)
}

// Options configures a Service. Fields without a documented zero value are
// required.
type Options struct {
	// NodeName is the name of the Kubernetes node.
	NodeName string
	Devices  Devices
	Pools    *pool.Set
	Locks    *driver.VolumeLocks // shared with the reconciler of this node's volumes
	Formats  *mount.Formatter
	// MaxVolumes is how many volumes the scheduler may place on the node; 0 means
	// as many as the device server takes.
	MaxVolumes int64
	// OperationTimeout bounds one operation, which may outlive its call; 0 means
	// 10 minutes.
	OperationTimeout time.Duration
	// OnDetached, if not nil, is told of every volume that was unstaged. It must
	// not block.
	OnDetached func(volumeID string)
	// Watch remembers what happened to devices; nil means that only what is so now is
	// reported.
	Watch *VolumeWatch
	// DeleteKind names how the kernel deletes devices, a label of the phase
	// metrics. It must not block; nil means it is not known.
	DeleteKind func() string
	// Registerer gets the phase metrics; nil means none are kept.
	Registerer prometheus.Registerer
}

// Service implements csi.NodeServer.
type Service struct {
	csi.UnimplementedNodeServer
	o         Options
	bootID    string
	phases    *prometheus.HistogramVec
	published published
	// fallbacks counts the mkfs that a template should have spared.
	fallbacks prometheus.Counter
	stats     singleflight.Group
	ops       sync.WaitGroup
}

var _ csi.NodeServer = (*Service)(nil)

// New returns a Service. Close it after the last call.
func New(o Options) (*Service, error) {
	if o.NodeName == "" || o.Devices == nil || o.Pools == nil || o.Locks == nil || o.Formats == nil {
		return nil, errors.New("node service: a required option is missing")
	}
	if o.OperationTimeout == 0 {
		o.OperationTimeout = 10 * time.Minute
	}
	if o.DeleteKind == nil {
		o.DeleteKind = func() string { return "" }
	}
	bootID, err := mount.BootID()
	if err != nil {
		return nil, err
	}
	s := &Service{o: o, bootID: bootID, phases: newPhases(), fallbacks: newFallbacks()}
	if o.Registerer != nil {
		for _, c := range []prometheus.Collector{s.phases, s.fallbacks} {
			if err := o.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("register metrics: %w", err)
			}
		}
	}
	return s, nil
}

// Close waits for the operations whose calls have ended before them, until ctx
// ends.
func (s *Service) Close(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.ops.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for operations in flight: %w", ctx.Err())
	}
}

// exclusive runs act as the one operation on a volume. The call returns at its
// deadline at the latest; act then goes on and keeps the volume's lock, because
// its mkfs or unmount can't be taken back, and a second one must not start beside
// it. The caller's retry finds the work done, or ABORTED.
func (s *Service) exclusive(ctx context.Context, volume, op string, act func(context.Context) error) error {
	release, err := s.o.Locks.Acquire(volume, op)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	s.ops.Go(func() {
		opCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.OperationTimeout)
		defer cancel()
		err := withoutPanic(opCtx, act)
		release()
		done <- err
	})
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s %s: %w", op, volume, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s %s: it goes on without its caller: %w", op, volume, ctx.Err())
	}
}

// withoutPanic makes a panic cost the operation and not the process.
func withoutPanic(ctx context.Context, act func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return act(ctx)
}

// NodeGetCapabilities is asked several times per mount, and always answers the
// same.
func (s *Service) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		// Makes Kubernetes tell ReadWriteOnce, which may be in several pods of a
		// node, from ReadWriteOncePod.
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return r, nil
}
