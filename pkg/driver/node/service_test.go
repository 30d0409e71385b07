//go:build !ublk

package node

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// emptyServer is a device server without devices.
type emptyServer struct{}

func (emptyServer) Attach(context.Context, string, client.AttachOptions) (client.Device, error) {
	return client.Device{}, status.Error(codes.ResourceExhausted, "no slot is left")
}
func (emptyServer) Detach(context.Context, string) error { return nil }
func (emptyServer) Get(context.Context, string) (client.Device, error) {
	return client.Device{}, status.Error(codes.NotFound, "not attached")
}
func (emptyServer) Resize(context.Context, string) (uint64, error) { return 0, nil }
func (emptyServer) Info(context.Context) (client.Info, error) {
	return client.Info{DevicesMax: 100}, nil
}

func newUnitService(t *testing.T) (*Service, *pool.Pool) {
	t.Helper()
	state := t.TempDir()
	dir := filepath.Join(state, "pools", "default")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pools, err := pool.NewSet([]pool.Options{
		{Name: "default", Kind: pool.KindPath, StateDir: state, Path: dir},
		{Name: "late", Kind: pool.KindPath, StateDir: state, Path: filepath.Join(state, "nowhere")},
	})
	if err != nil {
		t.Fatal(err)
	}
	opened, _ := pools.Open(context.Background())
	t.Cleanup(func() { opened[0].Close() })
	formats, err := mount.NewFormatter(mount.Options{IntentDir: filepath.Join(state, "formatting")})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{NodeName: "here", Devices: emptyServer{}, Pools: pools, Locks: &driver.VolumeLocks{}, Formats: formats})
	if err != nil {
		t.Fatal(err)
	}
	return s, opened[0]
}

func stageRequest(change func(*csi.NodeStageVolumeRequest)) *csi.NodeStageVolumeRequest {
	r := &csi.NodeStageVolumeRequest{
		VolumeId: "v", StagingTargetPath: "/nowhere/staging",
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}
	change(r)
	return r
}

func TestStageRequests(t *testing.T) {
	s, p := newUnitService(t)
	if err := p.Create("v", 1<<20); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*csi.NodeStageVolumeRequest)
		code   codes.Code
		says   string
	}{
		"no volume id":    {func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "" }, codes.InvalidArgument, "volume_id"},
		"no staging path": {func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "" }, codes.InvalidArgument, "staging_target_path"},
		"a relative one":  {func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "a/b" }, codes.InvalidArgument, "not absolute"},
		"no capability":   {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability = nil }, codes.InvalidArgument, "volume_capability"},
		"no access type":  {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.AccessType = nil }, codes.InvalidArgument, "neither mount nor block"},
		"many nodes": {func(r *csi.NodeStageVolumeRequest) {
			r.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.InvalidArgument, "ReadWriteOnce"},
		"unknown fs type":   {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().FsType = "zfs" }, codes.InvalidArgument, "ext4, xfs or btrfs"},
		"bind as an option": {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().MountFlags = []string{"bind"} }, codes.InvalidArgument, "bind"},
		"a mount group":     {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "1" }, codes.InvalidArgument, "volume_mount_group"},
		"queues of words":   {func(r *csi.NodeStageVolumeRequest) { r.VolumeContext = map[string]string{"queues": "many"} }, codes.InvalidArgument, "queues"},
		"an unknown volume": {func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "w" }, codes.NotFound, "w"},
		"a path as an id":   {func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "../v" }, codes.NotFound, ""},
		"an unknown pool":   {func(r *csi.NodeStageVolumeRequest) { r.VolumeContext = map[string]string{"pool": "fast"} }, codes.FailedPrecondition, "no such pool"},
		"a pool not ready":  {func(r *csi.NodeStageVolumeRequest) { r.VolumeContext = map[string]string{"pool": "late"} }, codes.Unavailable, "nowhere"},
		"no device slot":    {func(*csi.NodeStageVolumeRequest) {}, codes.ResourceExhausted, "no slot"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.NodeStageVolume(context.Background(), stageRequest(c.change))
			if driver.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v (%v), want %v %q", driver.Code(err), err, c.code, c.says)
			}
		})
	}
}

func TestStatsRequests(t *testing.T) {
	s, _ := newUnitService(t)
	for name, c := range map[string]struct {
		id, path string
		code     codes.Code
	}{
		"no volume id":   {"", "/", codes.InvalidArgument},
		"no path":        {"v", "", codes.InvalidArgument},
		"relative path":  {"v", "some/path", codes.NotFound},
		"unknown volume": {"v", "/", codes.NotFound},
	} {
		_, err := s.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: c.id, VolumePath: c.path})
		if driver.Code(err) != c.code {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
}

func TestPublishNeedsStaging(t *testing.T) {
	s, _ := newUnitService(t)
	for name, staging := range map[string]string{"no staging path": "", "nothing staged there": t.TempDir()} {
		_, err := s.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
			VolumeId: "v", TargetPath: filepath.Join(t.TempDir(), "target"), StagingTargetPath: staging,
			VolumeCapability: stageRequest(func(*csi.NodeStageVolumeRequest) {}).VolumeCapability,
		})
		if driver.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOneOperationAVolume(t *testing.T) {
	s, _ := newUnitService(t)
	ctx, cancel := context.WithCancel(context.Background())
	started, finish := make(chan struct{}), make(chan struct{})
	go func() {
		<-started
		cancel()
	}()
	err := s.exclusive(ctx, "v", "NodeStageVolume", func(context.Context) error {
		close(started)
		<-finish
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a call whose caller went away: %v", err)
	}
	_, err = s.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: "/nowhere"})
	if driver.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "NodeStageVolume") {
		t.Errorf("a call beside it: %v", err)
	}
	close(finish)
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: "/nowhere"}); err != nil {
		t.Errorf("a call after it: %v", err)
	}
}

func TestPanicCostsOneOperation(t *testing.T) {
	s, _ := newUnitService(t)
	if err := s.exclusive(context.Background(), "v", "op", func(context.Context) error { panic("oh") }); err == nil || !strings.Contains(err.Error(), "oh") {
		t.Errorf("got %v", err)
	}
	if err := s.exclusive(context.Background(), "v", "op", func(context.Context) error { return nil }); err != nil {
		t.Errorf("the lock is left: %v", err)
	}
}

// kubelet finds the socket, asks, and gives its verdict.
func kubelet(t *testing.T, socket string, verdict *registration.RegistrationStatus) *registration.PluginInfo {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := registration.NewRegistrationClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	info, err := c.GetInfo(ctx, &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.NotifyRegistrationStatus(ctx, verdict); err != nil && verdict.PluginRegistered {
		t.Fatal(err)
	}
	return info
}

func TestRegistration(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "registry", "reg.sock")
	registered := make(chan struct{}, 8)
	r := NewRegistration(RegistrationOptions{Socket: socket, CSISocket: "/csi.sock", CheckEvery: 10 * time.Millisecond,
		OnRegistered: func() { registered <- struct{}{} }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	ok := &registration.RegistrationStatus{PluginRegistered: true}
	info := kubelet(t, socket, ok)
	if info.Type != registration.CSIPlugin || info.Name != driver.Name || info.Endpoint != "/csi.sock" {
		t.Errorf("info %+v", info)
	}
	<-registered
	// Somebody clears the directory: the socket comes back.
	if err := os.RemoveAll(filepath.Dir(socket)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the socket does not come back")
		}
	}
	kubelet(t, socket, ok)
	<-registered
	cancel()
	if err := <-done; err != nil {
		t.Errorf("an orderly end: %v", err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestRegistrationRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "reg.sock")
	r := NewRegistration(RegistrationOptions{Socket: socket, CSISocket: "/csi.sock"})
	done := make(chan error, 1)
	go func() { done <- r.Run(context.Background()) }()
	kubelet(t, socket, &registration.RegistrationStatus{Error: "topology key clash"})
	if err := <-done; err == nil || !strings.Contains(err.Error(), "topology key clash") {
		t.Errorf("got %v", err)
	}
}
