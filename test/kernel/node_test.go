//go:build ublk && linux

package kernel

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// A node is a state directory with one pool, and at most one server.
type node struct {
	t      *testing.T
	state  string
	pool   string
	bin    string
	client *client.Client
	server *exec.Cmd
	log    *os.File
	flags  []string // of the server, besides those that every one has
	within []string // a command that runs the server as its last arguments say
	// neighbour is set for a node whose kernel has devices of another one as well.
	neighbour bool
}

// newNode makes a node whose pool is a file system on a loop device. The server
// is started, and at the test's end it must leave nothing behind.
func newNode(t *testing.T) *node {
	t.Helper()
	return newNodeOn(t, func(pool string) { mount(t, makeFS(t, "xfs", loopDevice(t, 2<<30)), pool, "xfs") })
}

func newNodeOn(t *testing.T, mountPool func(pool string)) *node {
	t.Helper()
	n := makeNode(t, mountPool)
	n.flags = []string{"--http-address", httpAddress}
	n.begin()
	return n
}

// makeNode makes a node without a server.
func makeNode(t *testing.T, mountPool func(pool string)) *node {
	t.Helper()
	state, err := os.MkdirTemp("/var/tmp", "csi-ublk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	n := &node{t: t, state: state, pool: filepath.Join(state, "pools", "p"), bin: binary(t)}
	if err := os.MkdirAll(n.pool, 0o700); err != nil {
		t.Fatal(err)
	}
	mountPool(n.pool)
	if err := os.Mkdir(filepath.Join(n.pool, "volumes"), 0o700); err != nil {
		t.Fatal(err)
	}
	if n.log, err = os.Create(filepath.Join(state, "log")); err != nil {
		t.Fatal(err)
	}
	if n.client, err = client.Dial(n.socket()); err != nil {
		t.Fatal(err)
	}
	return n
}

// begin starts the server and sees to the node's end.
func (n *node) begin() {
	n.t.Helper()
	n.start()
	n.t.Cleanup(n.finish)
}

func binary(t *testing.T) string {
	t.Helper()
	if b := os.Getenv("CSI_UBLK_BIN"); b != "" {
		return b
	}
	beside := filepath.Join(filepath.Dir(os.Args[0]), "csi-ublk")
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	b, err := exec.LookPath("csi-ublk")
	if err != nil {
		t.Fatalf("set CSI_UBLK_BIN, or put csi-ublk beside this test binary or in PATH: %v", err)
	}
	return b
}

func (n *node) socket() string { return filepath.Join(n.state, "s") }

// start runs a server, and returns when it answers.
func (n *node) start() {
	n.t.Helper()
	args := slices.Concat(n.within, []string{n.bin, "server", "--state-dir", n.state, "--socket", n.socket()}, n.flags)
	n.server = exec.Command(args[0], args[1:]...)
	n.server.Stderr = n.log
	if err := n.server.Start(); err != nil {
		n.t.Fatal(err)
	}
	failedBefore := n.t.Failed()
	defer func() {
		if n.t.Failed() && !failedBefore {
			b, _ := os.ReadFile(n.log.Name())
			n.t.Logf("server's log:\n%s", b)
		}
	}()
	n.eventually("the server to answer", func() error {
		_, err := n.client.Info(n.ctx())
		return err
	})
}

const httpAddress = "127.0.0.1:19810"

// kill ends the server as an OOM kill would.
func (n *node) kill() {
	n.t.Helper()
	if err := n.server.Process.Kill(); err != nil {
		n.t.Fatal(err)
	}
	_ = n.server.Wait()
}

// stop ends the server as kubelet does.
func (n *node) stop() {
	n.t.Helper()
	if err := n.server.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	if err := n.server.Wait(); err != nil {
		n.t.Errorf("server ended with %v", err)
	}
}

// finish detaches everything, ends the server and looks for what is left.
func (n *node) finish() {
	defer func() {
		n.client.Close()
		n.log.Close()
		if n.t.Failed() {
			b, _ := os.ReadFile(n.log.Name())
			n.t.Logf("server's log:\n%s", b[max(0, len(b)-12000):])
		}
	}()
	defer n.stop() // also if something is left
	list, err := n.client.List(n.ctx())
	if err != nil {
		n.t.Error(err)
	}
	for _, d := range list {
		n.eventually("detach of "+d.VolumeID, func() error { return n.client.Detach(n.ctx(), d.VolumeID) })
	}
	n.nothingLeft()
}

// journal is the path of a file in the server's journal of this boot.
func (n *node) journal(name string) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		n.t.Fatal(err)
	}
	return filepath.Join(n.state, "server/journal", strings.TrimSpace(string(boot)), name)
}

// nothingLeft waits until neither kernel nor journal know a device of this node;
// deletions go on for a moment after a detach.
func (n *node) nothingLeft() {
	n.t.Helper()
	n.eventually("the journal to be empty", func() error {
		left, err := filepath.Glob(n.journal("*.json"))
		if len(left) > 0 {
			err = fmt.Errorf("it holds %v", left)
		}
		return err
	})
	n.eventually("the kernel to have no device", func() error {
		if n.neighbour {
			// It lists the others' too; what this server still deletes it tells.
			info, err := n.client.Info(n.ctx())
			if err == nil && info.Releasing > 0 {
				err = fmt.Errorf("%d are being deleted", info.Releasing)
			}
			return err
		}
		if left := devices(n.t); len(left) > 0 {
			return fmt.Errorf("it has %v", left)
		}
		return nil
	})
}

func devices(t *testing.T) []string {
	t.Helper()
	list, err := os.ReadDir("/sys/class/ublk-char")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range list {
		names = append(names, d.Name())
	}
	return names
}

// worker returns the process that serves devices: the one that has a char device
// open.
func (n *node) worker() int {
	n.t.Helper()
	found := 0
	n.eventually("a worker to serve", func() error {
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			if parent(dir) == n.server.Process.Pid && servesDevices(dir) {
				found, _ = strconv.Atoi(filepath.Base(dir))
				return nil
			}
		}
		return fmt.Errorf("no worker has a char device open")
	})
	return found
}

func servesDevices(proc string) bool {
	fds, _ := filepath.Glob(proc + "/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "/dev/ublkc") {
			return true
		}
	}
	return false
}

func parent(proc string) int {
	b, err := os.ReadFile(proc + "/stat")
	if err != nil {
		return 0
	}
	// The command's name may hold anything, but no other parenthesis follows it.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	n.t.Cleanup(cancel)
	return ctx
}

// attach makes a volume's file and its device.
func (n *node) attach(id string, bytes int64, o client.AttachOptions) client.Device {
	n.t.Helper()
	o.Path = n.file(id)
	if _, err := os.Stat(o.Path); err != nil {
		f, err := os.Create(o.Path)
		if err != nil {
			n.t.Fatal(err)
		}
		if err := f.Truncate(bytes); err != nil {
			n.t.Fatal(err)
		}
		f.Close()
	}
	d, err := n.client.Attach(n.ctx(), id, o)
	if err != nil {
		n.t.Fatalf("attach: %v", err)
	}
	return d
}

func (n *node) file(id string) string { return filepath.Join(n.pool, "volumes", id) }

// live waits until a volume is served.
func (n *node) live(id string) {
	n.t.Helper()
	n.eventually(id+" to be live", func() error {
		d, err := n.client.Get(n.ctx(), id)
		if err == nil && d.State != client.Live {
			err = fmt.Errorf("it is %s: %s", d.State, d.Message)
		}
		return err
	})
}

// eventually waits for a condition; what it waits for is said with the last
// reason why it does not hold.
func (n *node) eventually(what string, f func() error) {
	n.t.Helper()
	eventually(n.t, what, f)
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("waited a minute for %s: %v", what, err)
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func loopDevice(t *testing.T, bytes int64) string {
	t.Helper()
	f, err := os.CreateTemp("/var/tmp", "disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(f.Name()) })
	if err := f.Truncate(bytes); err != nil {
		t.Fatal(err)
	}
	f.Close()
	loop := command(t, "losetup", "--find", "--show", f.Name())
	t.Cleanup(func() { command(t, "losetup", "-d", loop) })
	return loop
}

func makeFS(t *testing.T, kind, disk string) string {
	t.Helper()
	command(t, "mkfs."+kind, "-q", disk)
	return disk
}

func mount(t *testing.T, disk, dir, kind string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(disk, dir, kind, 0, ""); err != nil {
		t.Fatalf("mount %s at %s: %v", disk, dir, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil && err != unix.EINVAL {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}
