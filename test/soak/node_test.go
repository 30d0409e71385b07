//go:build soak && linux

package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

const (
	serverHTTP = "127.0.0.1:19810"
	nodeHTTP   = "127.0.0.1:19809"
)

var pools = []string{"default", "slow", "failing"}

// A node is a device server and a node plugin as processes, with a pool on the
// guest's data disk, one on a slow disk and one on a disk that fails at times. There is
// no API server: kubelet's calls must not need one.
type node struct {
	dir    string
	bin    string
	server process
	plugin process
	conn   *grpc.ClientConn
	csi    csi.NodeClient
	device *client.Client

	freezer       *mount.Freezer
	slow, failing *disk
	// What has been tried: cuts, disks held open, errors that the failing disk excuses.
	cuts, holds, errors atomic.Int64
}

func newNode(t *testing.T) *node {
	t.Helper()
	bin := os.Getenv("CSI_UBLK_BIN")
	if bin == "" {
		var err error
		if bin, err = exec.LookPath("csi-ublk"); err != nil {
			t.Fatalf("set CSI_UBLK_BIN, or put csi-ublk in PATH: %v", err)
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "soak-")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{dir: dir, bin: bin}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if n.freezer, err = mount.NewFreezer(n.path("marks"), nil); err != nil {
		t.Fatal(err)
	}
	n.slow, n.failing = slowDisk(t), failingDisk(t)
	disk := cmp.Or(os.Getenv("CSI_UBLK_DATA_DISK"), "/dev/ubdb")
	write(t, n.path("pools.yaml"), fmt.Sprintf(`pools:
- {name: default, kind: device, device: %s}
- {name: slow, kind: device, device: %s}
- {name: failing, kind: path, path: %s}
`, disk, n.slow.path, failingPool(t, n.failing, n.path("failing"))))
	// Nobody listens there.
	write(t, n.path("kubeconfig"), `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: "https://127.0.0.1:9"}}]}`)
	n.server = process{name: "server", log: n.path("server.log"), args: []string{bin, "server",
		"--state-dir", dir, "--socket", n.path("server.sock"), "--http-address", serverHTTP}}
	n.plugin = process{name: "node plugin", log: n.path("node.log"), args: []string{bin, "node", "--register=false",
		"--config", n.path("pools.yaml"), "--kubeconfig", n.path("kubeconfig"), "--node-name", "soak", "--state-dir", dir,
		"--endpoint", "unix://" + n.path("csi.sock"), "--server-socket", n.path("server.sock"), "--kubelet-dir", n.path("kubelet"), "--http-address", nodeHTTP}}
	if n.conn, err = grpc.NewClient("unix:"+n.path("csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(reconnect)); err != nil {
		t.Fatal(err)
	}
	if n.device, err = client.Dial(n.path("server.sock")); err != nil {
		t.Fatal(err)
	}
	n.csi = csi.NewNodeClient(n.conn)
	for _, p := range []*process{&n.server, &n.plugin} {
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		n.conn.Close()
		n.device.Close()
		for _, p := range []*process{&n.plugin, &n.server} {
			if err := p.end(); err != nil {
				t.Error(err)
			}
		}
		if left := n.processes(); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
		for _, pool := range pools {
			if err := syscall.Unmount(n.path("pools/"+pool), 0); err != nil {
				t.Errorf("unmount pool %s: %v", pool, err)
			}
		}
	})
	t.Cleanup(func() { n.autopsy(t) }) // before the processes are ended
	eventually(t, "the node to answer", n.answers)
	return n
}

// reconnect looks for a plugin that was restarted soon, as kubelet does with a connection
// for each call; gRPC would wait for up to two minutes.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: time.Second,
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := n.csi.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	return err
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A process is killed and started again while others look at it.
type process struct {
	name, log string
	args      []string

	mu  sync.Mutex
	cmd *exec.Cmd
}

func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	return p.cmd.Start()
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// kill ends the process as the kernel's OOM killer does.
func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill the %s, which ended by itself: %w", p.name, err)
	}
	_ = p.cmd.Wait()
	return nil
}

// end ends the process as kubelet does.
func (p *process) end() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end the %s: %w", p.name, err)
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("end of the %s: %w", p.name, err)
	}
	return nil
}

// eventually waits some minutes for a condition.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	err := errors.New("not looked")
	for deadline := time.Now().Add(patience / 2); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("waited %v for %s: %v", patience/2, what, err)
}
