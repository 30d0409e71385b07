package driver

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a service whose methods do what a test needs.
type node struct {
	csi.UnimplementedNodeServer
	stage   func(context.Context) error
	unstage func()
}

func (n *node) NodeStageVolume(ctx context.Context, _ *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, n.stage(ctx)
}

func (n *node) NodeUnstageVolume(context.Context, *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	n.unstage()
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// buffer is a bytes.Buffer for two goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) { b.mu.Lock(); defer b.mu.Unlock(); return b.b.Write(p) }
func (b *buffer) String() string              { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }

// start serves o until the test ends or stop is called, and returns a connection.
func start(t *testing.T, o ServerOptions) (conn *grpc.ClientConn, stop func()) {
	t.Helper()
	if o.Endpoint == "" {
		o.Endpoint = "unix://" + filepath.Join(t.TempDir(), "csi.sock")
	}
	if o.Identity == nil {
		o.Identity = NewIdentity(IdentityOptions{Version: "v1"})
	}
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
	})
	t.Cleanup(stop)
	conn, err = grpc.NewClient(o.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, stop
}

func TestServerIdentity(t *testing.T) {
	ready, broken := false, error(nil)
	conn, _ := start(t, ServerOptions{Identity: NewIdentity(IdentityOptions{Version: "v1.2", Ready: func(context.Context) (bool, error) { return ready, broken }})})
	c := csi.NewIdentityClient(conn)
	info, err := c.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || info.Name != Name || info.VendorVersion != "v1.2" {
		t.Errorf("GetPluginInfo: %v %v", info, err)
	}
	caps, err := c.GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	if err != nil || len(caps.Capabilities) != 4 {
		t.Errorf("GetPluginCapabilities: %v %v", caps, err)
	}
	if r, err := c.Probe(t.Context(), &csi.ProbeRequest{}); err != nil || r.Ready.GetValue() {
		t.Errorf("Probe while starting: %v %v, want ready=false", r, err)
	}
	ready = true
	if r, err := c.Probe(t.Context(), &csi.ProbeRequest{}); err != nil || !r.Ready.GetValue() {
		t.Errorf("Probe when ready: %v %v", r, err)
	}
	broken = errors.New("no driver: modprobe ublk_drv")
	if _, err := c.Probe(t.Context(), &csi.ProbeRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Probe when broken: %v, want FAILED_PRECONDITION", err)
	}
}

func TestSnapshotMetadataIsACapabilityWhereItIsOffered(t *testing.T) {
	for _, offered := range []bool{false, true} {
		caps, err := NewIdentity(IdentityOptions{SnapshotMetadata: offered}).GetPluginCapabilities(t.Context(), nil)
		if err != nil || strings.Contains(caps.String(), "SNAPSHOT_METADATA_SERVICE") != offered {
			t.Errorf("offered %v: %v %v", offered, caps, err)
		}
	}
}

// blocks answers one of its calls with an error after a message, and the other not at all.
type blocks struct {
	csi.UnimplementedSnapshotMetadataServer
}

func (blocks) GetMetadataAllocated(_ *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	return errors.Join(s.Send(&csi.GetMetadataAllocatedResponse{VolumeCapacityBytes: 7}), fs.ErrNotExist)
}

func (blocks) GetMetadataDelta(*csi.GetMetadataDeltaRequest, csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	panic("a bug")
}

func TestServerStreamIsLoggedCountedAndMapped(t *testing.T) {
	var out buffer
	reg := prometheus.NewRegistry()
	conn, stop := start(t, ServerOptions{
		Logger: slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), Registerer: reg, SnapshotMetadata: blocks{},
	})
	c := csi.NewSnapshotMetadataClient(conn)
	a, err := c.GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: "s1", Secrets: map[string]string{"key": "hunter2"}})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := a.Recv(); err != nil || m.VolumeCapacityBytes != 7 {
		t.Errorf("the message before the error: %v %v", m, err)
	}
	if _, err := a.Recv(); status.Code(err) != codes.NotFound {
		t.Errorf("the error: %v, want NOT_FOUND", err)
	}
	d, err := c.GetMetadataDelta(t.Context(), &csi.GetMetadataDeltaRequest{BaseSnapshotId: "s1", TargetSnapshotId: "s2"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("a panic: %v, want INTERNAL", err)
	}
	stop()
	for _, want := range []string{`"snapshot":"s1"`, `"snapshot":"s2"`, `"code":"NotFound"`, "panic in CSI call"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Error("the log has a secret")
	}
	if n := testutil.CollectAndCount(reg, "csi_ublk_rpc_duration_seconds"); n != 2 {
		t.Errorf("%d methods counted, want 2", n)
	}
}

func TestServerCallIsLoggedCountedAndMapped(t *testing.T) {
	var out buffer
	reg := prometheus.NewRegistry()
	conn, stop := start(t, ServerOptions{
		Logger: slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), Registerer: reg,
		Node: &node{stage: func(context.Context) error { return fs.ErrNotExist }, unstage: func() { panic("a bug") }},
	})
	c := csi.NewNodeClient(conn)
	_, err := c.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "v1", Secrets: map[string]string{"key": "hunter2"},
		VolumeCapability: &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: []string{"password=hunter3"}}}}})
	if status.Code(err) != codes.NotFound {
		t.Errorf("got %v, want NOT_FOUND", err)
	}
	if _, err := c.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "v2"}); status.Code(err) != codes.Internal {
		t.Errorf("panic: got %v, want INTERNAL", err)
	}
	stop()
	log := out.String()
	for _, want := range []string{`"op":"NodeStageVolume"`, `"volume":"v1"`, `"code":"NotFound"`, `"op":"NodeUnstageVolume"`, `"panic":"a bug"`, "stripped"} {
		if !strings.Contains(log, want) {
			t.Errorf("log lacks %s:\n%s", want, log)
		}
	}
	for _, secret := range []string{"hunter2", "hunter3"} {
		if strings.Contains(log, secret) {
			t.Errorf("log shows %s:\n%s", secret, log)
		}
	}
	if n := testutil.CollectAndCount(reg, "csi_ublk_rpc_duration_seconds"); n != 2 {
		t.Errorf("%d duration series, want one a call", n)
	}
}

func TestServerGate(t *testing.T) {
	conn, _ := start(t, ServerOptions{
		Node: &node{stage: func(context.Context) error { return nil }},
		Gate: func(method string) error { return status.Errorf(codes.Unavailable, "%s: no lease", method) },
	})
	if _, err := csi.NewNodeClient(conn).NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want UNAVAILABLE", err)
	}
	if _, err := csi.NewIdentityClient(conn).Probe(t.Context(), &csi.ProbeRequest{}); err != nil {
		t.Errorf("the gate must let Probe through: %v", err)
	}
}

func TestServerStop(t *testing.T) {
	cases := map[string]struct {
		timeout time.Duration
		want    codes.Code
	}{
		"a call in flight is finished":        {time.Minute, codes.OK},
		"a call past the stop timeout is cut": {20 * time.Millisecond, codes.Unavailable},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			entered, finish := make(chan struct{}), make(chan struct{})
			sock := filepath.Join(t.TempDir(), "csi.sock")
			conn, stop := start(t, ServerOptions{Endpoint: "unix://" + sock, StopTimeout: c.timeout,
				Node: &node{stage: func(ctx context.Context) error {
					close(entered)
					select {
					case <-finish:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}}})
			got := make(chan error, 1)
			go func() {
				_, err := csi.NewNodeClient(conn).NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{})
				got <- err
			}()
			<-entered
			stopped := make(chan struct{})
			go func() { stop(); close(stopped) }()
			if c.want == codes.OK {
				time.Sleep(20 * time.Millisecond)
				close(finish)
			}
			<-stopped
			if err := <-got; status.Code(err) != c.want {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if _, err := os.Lstat(sock); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("socket after stop: %v", err)
			}
		})
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	sock := filepath.Join(dir, "new", "csi.sock")
	live, err := Listen("unix://" + sock)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(sock); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a live socket was taken over: %v", err)
	}
	live.(*net.UnixListener).SetUnlinkOnClose(false)
	live.Close() // as if the process was killed: the file stays
	again, err := Listen("unix:" + sock)
	if err != nil {
		t.Fatalf("a stale socket must be replaced: %v", err)
	}
	again.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file); err == nil {
		t.Error("a plain file was replaced by a socket")
	}
	for _, bad := range []string{"", "csi.sock", "unix://csi.sock", "tcp://127.0.0.1:1", "/" + strings.Repeat("a", 120)} {
		if _, err := ParseEndpoint(bad); Code(err) != codes.InvalidArgument {
			t.Errorf("ParseEndpoint(%q): %v, want an InvalidError", bad, err)
		}
	}
}
