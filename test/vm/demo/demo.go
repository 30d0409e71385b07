// Package demo shows a volume's whole life in a cluster of the rig, step by step, and checks every step.
package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/cluster"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/image"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/kube"
)

//go:embed story.yaml
var story string

// Options says how the demo is run. The zero value is the default.
type Options struct {
	// Name is the cluster's; "" means cluster.DefaultName.
	Name string
	// Nodes is the number of nodes; 0 means 2, or 1 on a machine with little memory.
	Nodes int
	// Kernel is the nodes' kernel; "" means the current one.
	Kernel kernel.Variant
	// Accel is how nodes run; "" means the machine's best.
	Accel string
	// Again uses the cluster that is up instead of a new one.
	Again bool
	// Out receives the story.
	Out io.Writer
}

// Run builds what is missing, starts the demo's cluster, installs the driver and plays the story. The cluster stays up, also
// when a step fails: then the logs are collected and the error says where.
func Run(ctx context.Context, h *host.Host, o Options) error {
	if o.Name == "" {
		o.Name = cluster.DefaultName
	}
	repo, err := kube.Repo()
	if err != nil {
		return err
	}
	k, err := start(ctx, h, repo, o)
	if err != nil {
		return err
	}
	s := &screen{out: o.Out, cluster: k}
	err = play(ctx, h, s, repo)
	if ctx.Err() != nil {
		// Whoever interrupts the demo does not want to look around.
		down, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return errors.Join(ctx.Err(), cluster.Remove(down, h, o.Name))
	}
	if err != nil {
		dir := filepath.Join(repo, "out", "demo-logs")
		collect(context.WithoutCancel(ctx), s, dir)
		return fmt.Errorf("demo, step %d: %w\nThe cluster is left up (vm cluster down --name %s removes it); logs are in %s", s.step, err, o.Name, dir)
	}
	farewell(o.Out, o.Name)
	return nil
}

// start returns the demo's cluster with the driver's image on its nodes.
func start(ctx context.Context, h *host.Host, repo string, o Options) (*cluster.Kept, error) {
	if o.Again {
		return cluster.Open(ctx, h, o.Name)
	}
	dir, err := os.MkdirTemp("", "csi-ublk-demo")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	driver, err := image.Driver(ctx, h, repo, dir, image.DriverOptions{})
	if err != nil {
		return nil, err
	}
	archive := filepath.Join(dir, "csi-ublk-image.tar")
	if err := image.Write(archive, driver); err != nil {
		return nil, err
	}
	// With the other builds, not between the steps of the story.
	if _, err := kube.Build(ctx, h, repo, kube.Helm); err != nil {
		return nil, err
	}
	nodes := o.Nodes
	if nodes == 0 {
		nodes = nodesFor(availableMiB())
	}
	return cluster.Launch(ctx, h, cluster.Spec{
		Name: o.Name, Nodes: nodes, Kernel: o.Kernel, Accel: o.Accel, Images: []string{archive}, Repo: repo,
	})
}

// nodesFor is how many nodes fit: the control plane takes about 700 MiB, a node about 600 with the driver on it.
func nodesFor(freeMiB int) int {
	if freeMiB > 0 && freeMiB < 2300 {
		return 1
	}
	return 2
}

// availableMiB is what the kernel says can be had without swapping; 0 if it does not say.
func availableMiB() int {
	text, _ := os.ReadFile("/proc/meminfo")
	for _, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, _ := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			return kib >> 10
		}
	}
	return 0
}

func farewell(out io.Writer, name string) {
	vm, down := "bin/vm cluster", "make demo-down"
	option := ""
	if name != cluster.DefaultName {
		option, down = " --name "+name, vm+" down --name "+name
	}
	fmt.Fprintf(out, `
== Done: every step was checked.
   The cluster is left up. Look around:
     %[1]s kubectl%[2]s get pods -A
     %[1]s kubectl%[2]s get storageclasses,ublknodes,ublkvolumes
     %[1]s node%[2]s 1 'ls -l /dev/ublk*; ls -lsR /var/lib/csi-ublk/pools'
     %[1]s run%[2]s bash          a shell in the cluster's network, with KUBECONFIG set
   Remove everything: %[3]s
`, vm, option, down)
}

// collect gathers what explains a failure. What can't be had is left out: the failure itself is what is reported.
func collect(ctx context.Context, s *screen, dir string) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return
	}
	save := func(name, text string) { _ = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644) }
	for name, args := range map[string]string{
		"pods.txt":       "get pods -A -o wide",
		"describe.txt":   "describe pods -A",
		"events.txt":     "get events -A --sort-by=.lastTimestamp",
		"objects.yaml":   "get pvc,pv,storageclass,csidriver,csinode,csistoragecapacity,ublknode,ublkvolume -A -o yaml",
		"driver.log":     "logs -n " + cluster.Release + " -l app.kubernetes.io/name=csi-ublk --all-containers --prefix --tail=-1",
		"driver-old.log": "logs -n " + cluster.Release + " -l app.kubernetes.io/name=csi-ublk --all-containers --prefix --tail=-1 --previous",
	} {
		out, _ := s.quietly(ctx, nil, args)
		save(name, out)
	}
	for n := range s.cluster.Nodes {
		out, _ := s.cluster.Shell(ctx, n+1, "dmesg | tail -100; echo; lsblk; echo; cat /proc/mounts; echo; tail -n 300 /var/log/kubelet.log")
		save(fmt.Sprintf("node%d.txt", n+1), out)
	}
}
