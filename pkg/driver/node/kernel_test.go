//go:build ublk

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"google.golang.org/grpc/codes"
)

// These tests run as root in a guest: a device server process of the real binary
// (CSI_UBLK_BIN, or the one in PATH), a pool on the guest's data disk, file systems that are mounted.

const (
	gib = 1 << 30
)

var world struct {
	dir     string // everything but the pool
	pools   *pool.Set
	pool    *pool.Pool
	devices *client.Client
	server  *exec.Cmd
}

func TestMain(m *testing.M) {
	if what := os.Getenv("FREEZE"); what != "" {
		freezeAndHang(what)
	}
	code, err := runInWorld(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "node tests:", err)
		code = 1
	}
	os.Exit(code)
}

func runInWorld(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		return 1, err
	}
	world.dir = dir
	disk := cmp.Or(os.Getenv("CSI_UBLK_DATA_DISK"), "/dev/ubdb")
	world.pools, err = pool.NewSet([]pool.Options{{Name: "default", Kind: pool.KindDevice, StateDir: dir, Device: disk, ReservePercent: 5}})
	if err != nil {
		return 1, err
	}
	opened, err := world.pools.Open(context.Background())
	if err != nil {
		return 1, err
	}
	world.pool = opened[0]
	if world.devices, err = client.Dial(filepath.Join(dir, "server.sock")); err != nil {
		return 1, err
	}
	if err := startServer(); err != nil {
		return 1, err
	}
	code := m.Run()
	if left := ublkDisks(); len(left) > 0 {
		return 1, fmt.Errorf("disks left behind: %v", left)
	}
	return code, stopServer(os.Interrupt)
}

func startServer() error {
	bin := os.Getenv("CSI_UBLK_BIN")
	if bin == "" {
		var err error
		if bin, err = exec.LookPath("csi-ublk"); err != nil {
			return fmt.Errorf("set CSI_UBLK_BIN, or put csi-ublk in PATH: %w", err)
		}
	}
	world.server = exec.Command(bin, "server", "--state-dir", world.dir, "--socket", filepath.Join(world.dir, "server.sock"), "--http-address", "")
	world.server.Stdout, world.server.Stderr = os.Stderr, os.Stderr
	if err := world.server.Start(); err != nil {
		return err
	}
	deadline := time.Now().Add(60 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := world.devices.Info(ctx)
		cancel()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the device server does not answer: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func stopServer(sig os.Signal) error {
	if err := world.server.Process.Signal(sig); err != nil {
		return err
	}
	_ = world.server.Wait()
	return nil
}

func ublkDisks() []string {
	disks, _ := filepath.Glob("/sys/block/ublkb*")
	return disks
}

func newService(t testing.TB) *Service {
	t.Helper()
	formats, err := mount.NewFormatter(mount.Options{IntentDir: filepath.Join(world.dir, "formatting")})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{NodeName: "here", Devices: world.devices, Pools: world.pools, Locks: &driver.VolumeLocks{}, Formats: formats})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// volume is one volume under test; at cleanup it must be gone without a trace.
type volume struct {
	t       *testing.T
	s       *Service
	id      string
	staging string
	pods    string
	cap     *csi.VolumeCapability
}

func mountCapability(fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

func blockCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

func single(c *csi.VolumeCapability) *csi.VolumeCapability {
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	return c
}

var serial struct {
	sync.Mutex
	n int
}

func newVolume(t *testing.T, s *Service, c *csi.VolumeCapability, size int64) *volume {
	t.Helper()
	serial.Lock()
	serial.n++
	id := fmt.Sprintf("v%d", serial.n)
	serial.Unlock()
	if err := world.pool.Create(id, size); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	v := &volume{t: t, s: s, id: id, staging: filepath.Join(dir, "staging"), pods: dir, cap: c}
	t.Cleanup(func() {
		if d, err := world.devices.Get(context.Background(), id); driver.Code(err) != codes.NotFound {
			t.Errorf("volume %s is still attached: %+v, %v", id, d, err)
		}
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), dir) {
			t.Errorf("mounts left below %s (%v)", dir, err)
		}
		if err := world.pool.Delete(id); err != nil {
			t.Error(err)
		}
	})
	return v
}

func (v *volume) stage() error {
	_, err := v.s.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.cap, VolumeContext: map[string]string{"pool": "default"},
	})
	return err
}

func (v *volume) target(pod string) string { return filepath.Join(v.pods, pod) }

func (v *volume) publish(pod string, readOnly bool) error {
	_, err := v.s.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: v.target(pod), VolumeCapability: v.cap, Readonly: readOnly,
	})
	return err
}

func (v *volume) unpublish(pod string) error {
	_, err := v.s.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target(pod)})
	return err
}

func (v *volume) unstage() error {
	_, err := v.s.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	return err
}

func (v *volume) must(errs ...error) {
	v.t.Helper()
	if err := errors.Join(errs...); err != nil {
		v.t.Fatal(err)
	}
}

func (v *volume) wantCode(what string, err error, want codes.Code) {
	v.t.Helper()
	if got := driver.Code(err); got != want {
		v.t.Errorf("%s: %v (%v), want %v", what, got, err, want)
	}
}

func (v *volume) down(pods ...string) {
	v.t.Helper()
	for _, pod := range pods {
		v.must(v.unpublish(pod))
		if _, err := os.Lstat(v.target(pod)); !errors.Is(err, os.ErrNotExist) {
			v.t.Errorf("target path is left: %v", err)
		}
	}
	v.must(v.unstage())
}
