package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// Addresses. Every cluster has them all for itself, because it has a network namespace to itself.
const (
	controlAddress = "10.201.0.1" // the bridge: API server, and gateway of the nodes
	serviceAddress = "10.96.0.1"  // the Service "kubernetes", also an address of the bridge: pods reach it without kube-proxy too
	serviceRange   = "10.96.0.0/16"
	podRange       = "10.244.0.0/16"
	dnsAddress     = "10.96.0.10" // no DNS server runs; the kubelet wants an address
	server         = "https://" + controlAddress + ":443"
	maxNodes       = 64
)

func nodeName(n int) string    { return "node" + strconv.Itoa(n) }
func nodeAddress(n int) string { return fmt.Sprintf("10.201.0.%d", 10+n) }
func nodePods(n int) string    { return fmt.Sprintf("10.244.%d.0/24", n) }
func tapName(n int) string     { return "t" + strconv.Itoa(n) }

// namespace is a named network namespace of ip-netns.
type namespace string

func (n namespace) path() string { return filepath.Join("/run/netns", string(n)) }

var networkTools = []host.Tool{{Program: "ip", Package: "iproute2"}}

// create makes the namespace with a bridge and a tap device for every node on it.
func (n namespace) create(ctx context.Context, nodes int) error {
	ip := func(args string) error {
		_, err := host.Run(ctx, host.Command{Args: append([]string{host.Tool{Program: "ip"}.Find()}, strings.Fields(args)...)})
		return err
	}
	if err := ip("netns add " + string(n)); err != nil {
		return err
	}
	steps := []string{
		"link set lo up", "link add br0 type bridge", "addr add " + controlAddress + "/24 dev br0",
		"addr add " + serviceAddress + "/32 dev br0", "link set br0 up",
	}
	for k := 1; k <= nodes; k++ {
		steps = append(steps, "tuntap add "+tapName(k)+" mode tap", "link set "+tapName(k)+" master br0 up", "route add "+nodePods(k)+" via "+nodeAddress(k))
	}
	for _, s := range steps {
		if err := ip("-n " + string(n) + " " + s); err != nil {
			return err
		}
	}
	return n.do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
}

// do runs f on a thread that is in the namespace. What f starts is in the namespace as well, also after it.
func (n namespace) do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, so that no other one is put onto it.
		runtime.LockOSThread()
		if err := n.enter(); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// enter moves the calling thread into the namespace for good.
func (n namespace) enter() error {
	fd, err := unix.Open(n.path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", n, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", n, err)
	}
	return nil
}

// dial connects from inside the namespace; a socket stays in the namespace that it was made in.
func (n namespace) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = n.do(func() error {
		// One attempt at a time: a second one would run on another thread, which is outside.
		d := net.Dialer{FallbackDelay: -1}
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// remove ends every process in the namespace and removes it, with its devices. It is no error if there is none.
func (n namespace) remove() error {
	var st unix.Stat_t
	if err := unix.Stat(n.path(), &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return fmt.Errorf("look at network namespace %s: %w", n, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		pids := n.processes(st)
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if len(pids) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove network namespace %s: processes %v do not end", n, pids)
		}
	}
	if err := unix.Unmount(n.path(), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("remove network namespace %s: %w", n, err)
	}
	if err := os.Remove(n.path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove network namespace %s: %w", n, err)
	}
	return nil
}

// processes lists who is in the namespace, this process aside.
func (n namespace) processes(want unix.Stat_t) []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(filepath.Join("/proc", e.Name(), "ns/net"), &st) == nil && st.Ino == want.Ino && st.Dev == want.Dev {
			pids = append(pids, pid)
		}
	}
	return pids
}
