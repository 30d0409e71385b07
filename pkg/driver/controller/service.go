package controller

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/capacity"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// Options configures a Service. All fields but PluginGrace are required.
type Options struct {
	// Client reads from Cache and writes to the API server.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Cache must not have been asked for UblkVolume before Start, if the old
	// holder of the lease may still write then; see Start.
	Cache  cache.Cache
	Ledger *capacity.Ledger
	// PluginGrace is for how long the node plugin of a node may have no ready pod
	// until the node takes no new volume and is not waited for. The cache has just
	// the pods of the plugin then. 0 is for ever: no pods are read.
	PluginGrace time.Duration
}

// Service is the CSI controller service. It answers only while Start runs and
// the cache is complete; Gate says so.
type Service struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	o        Options
	locks    driver.VolumeLocks
	waiters  waiters
	plugins  *plugins // nil if pods are not looked at
	offering sync.Mutex
	ready    atomic.Bool
}

// New returns a service that refuses calls until it is started.
func New(o Options) *Service {
	s := &Service{o: o}
	if o.PluginGrace > 0 {
		s.plugins = newPlugins(o.PluginGrace, s.offer)
	}
	return s
}

// Ready is the answer to Probe.
func (s *Service) Ready(context.Context) (bool, error) { return s.ready.Load(), nil }

// Gate refuses calls until the service is started and knows all objects.
func (s *Service) Gate(string) error {
	if s.ready.Load() {
		return nil
	}
	return status.Error(codes.Unavailable, "this replica of the controller does not hold the lease, or has not read all objects yet; retry")
}

// NeedLeaderElection makes a manager start the service on the one replica that
// holds the lease.
func (s *Service) NeedLeaderElection() bool { return true }

// ControllerGetCapabilities lists what is offered.
func (s *Service) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	offered := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		// The node service has it too: ReadWriteOncePod needs both.
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range offered {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return r, nil
}
