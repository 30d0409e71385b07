//go:build !ublk

package node

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver/health"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// illServer is a device server of which only its state is asked.
type illServer struct {
	emptyServer
	info   client.Info
	err    error // of Info and of Get
	device client.Device
}

func (s illServer) Info(context.Context) (client.Info, error) { return s.info, s.err }
func (s illServer) Get(context.Context, string) (client.Device, error) {
	return s.device, s.err
}

// What is wrong with a node is named: its second pool is never open here.
func TestStorageHealth(t *testing.T) {
	for name, c := range map[string]struct {
		server Devices
		want   map[string]csi.StorageHealthErrorType
	}{
		"a server that is well": {emptyServer{}, map[string]csi.StorageHealthErrorType{
			string(health.PoolFailed): csi.StorageHealthErrorType_STORAGE_UNREACHABLE}},
		"one that is away": {illServer{err: errors.New("connection refused")}, map[string]csi.StorageHealthErrorType{
			string(health.PoolFailed):        csi.StorageHealthErrorType_STORAGE_UNREACHABLE,
			string(health.ServerUnavailable): csi.StorageHealthErrorType_STORAGE_UNREACHABLE}},
		"a kernel that does not answer": {illServer{info: client.Info{Wedged: true, WedgedMessage: "DEL_DEV of device 3"}}, map[string]csi.StorageHealthErrorType{
			string(health.PoolFailed): csi.StorageHealthErrorType_STORAGE_UNREACHABLE,
			"KernelWedged":            csi.StorageHealthErrorType_STORAGE_DEGRADED}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newUnitService(t)
			s.o.Devices = c.server
			r, err := s.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
			if err != nil || len(r.BackendHealth) != len(c.want) {
				t.Fatalf("%v, %v", r, err)
			}
			for _, b := range r.BackendHealth {
				if want, ok := c.want[b.Reason]; !ok || b.Status != want || b.Message == "" {
					t.Errorf("%v, want %v", b, c.want)
				}
			}
		})
	}
}

func TestVolumeHealthWhileTheServerIsAway(t *testing.T) {
	s, p := newUnitService(t)
	if err := p.Create("v", 1<<20); err != nil {
		t.Fatal(err)
	}
	s.o.Devices, s.o.Watch = illServer{err: status.Error(codes.Unavailable, "connection refused")}, &VolumeWatch{}
	r, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "v"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range r.VolumeHealth.GetHealthStatuses() {
		if e.Reason == string(health.ServerUnavailable) {
			return
		}
	}
	t.Errorf("nobody says that the server is away: %v", r.VolumeHealth)
}
