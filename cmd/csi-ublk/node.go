package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/driver/node"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
)

type nodeOptions struct {
	config       string
	nodeName     string
	endpoint     string
	serverSocket string
	stateDir     string
	kubeletDir   string
	httpAddress  string
	maxVolumes   int64
	register     bool
	kubeconfig   string
	qps          float32
	burst        int
	reclaimRate  string
	templates    bool
	metadata     metadataOptions
}

// newNodeCommand is the node role.
func newNodeCommand() *cobra.Command {
	var o nodeOptions
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Stage and publish this node's volumes for kubelet",
		Long: `node is the CSI node service. It registers itself with kubelet, sets up the
node's pools, makes and removes the files of volumes, and makes, mounts and
publishes file systems on the devices that "csi-ublk server" on the same node
serves. It may be stopped and updated at any time: volumes in use go on.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runNode(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "/etc/csi-ublk/node.yaml", "file that says what pools the node has")
	f.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "name of the Kubernetes node; NODE_NAME in the environment")
	f.StringVar(&o.endpoint, "endpoint", "", "unix socket of the CSI service; empty for plugins/csi-ublk.io/csi.sock in the kubelet directory")
	f.StringVar(&o.serverSocket, "server-socket", "/run/csi-ublk/server.sock", "unix socket of the device server")
	f.StringVar(&o.stateDir, "state-dir", "/var/lib/csi-ublk", "directory of the pools")
	f.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "kubelet's --root-dir")
	f.StringVar(&o.httpAddress, "http-address", ":9809", "address of /healthz, /readyz and /metrics; empty for none")
	f.Int64Var(&o.maxVolumes, "max-volumes", 0, "volumes that may be placed on the node; 0 for as many as the device server takes")
	f.BoolVar(&o.register, "register", true, "register with kubelet")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; empty for the pod's service account")
	f.Float32Var(&o.qps, "kube-api-qps", 200, "requests a second to the API server")
	f.IntVar(&o.burst, "kube-api-burst", 400, "requests at once to the API server")
	f.StringVar(&o.reclaimRate, "reclaim-rate", "1Gi", "bytes a second of deleted volumes that are given back to a pool")
	f.BoolVar(&o.templates, "templates", true, "keep file-system templates in pools with reflink and clone new volumes from them, which spares mkfs")
	o.metadata.addFlags(f)
	return cmd
}

func (o *nodeOptions) complete() (reclaimBytesPerSecond int64, err error) {
	if o.nodeName == "" {
		return 0, usagef("--node-name is empty, and so is NODE_NAME in the environment")
	}
	if problems := validation.IsValidLabelValue(o.nodeName); len(problems) > 0 {
		return 0, usagef("--node-name=%s: can't be the value of a topology label, which says where a volume is: %s", o.nodeName, strings.Join(problems, "; "))
	}
	o.endpoint = cmp.Or(o.endpoint, "unix://"+filepath.Join(o.kubeletDir, "plugins", driver.Name, "csi.sock"))
	if err := o.metadata.check(); err != nil {
		return 0, err
	}
	rate, err := resource.ParseQuantity(o.reclaimRate)
	if err != nil || rate.Value() <= 0 {
		return 0, usagef("--reclaim-rate=%s: must be a size above 0, as 1Gi", o.reclaimRate)
	}
	return rate.Value(), nil
}

func runNode(ctx context.Context, o nodeOptions) error {
	rate, err := o.complete()
	if err != nil {
		return err
	}
	config, err := readNodeConfig(o.config)
	if err != nil {
		return err
	}
	cluster := &nodeCluster{}
	pools, err := pool.NewSet(config.options(o, rate, cluster.spaceChanged))
	if err != nil {
		return fmt.Errorf("configuration %s: %w", o.config, err)
	}
	kube, err := kubeConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	return serveNode(ctx, o, pools, cluster, kube)
}

// serveNode wires the role's parts and runs them until ctx ends or one fails.
func serveNode(ctx context.Context, o nodeOptions, pools *pool.Set, cluster *nodeCluster, kube *rest.Config) error {
	devices, err := serverclient.Dial(o.serverSocket)
	if err != nil {
		return err
	}
	defer devices.Close()
	formats, err := mount.NewFormatter(mount.Options{IntentDir: filepath.Join(filepath.Dir(o.serverSocket), "formatting")})
	if err != nil {
		return err
	}
	freezer, err := thawed(filepath.Join(filepath.Dir(o.serverSocket), "frozen"), devices.GuardFrozen)
	if err != nil {
		return err
	}
	locks, watch := &driver.VolumeLocks{}, &node.VolumeWatch{}
	service, err := node.New(node.Options{
		NodeName: o.nodeName, Devices: devices, Pools: pools, Locks: locks, Formats: formats,
		MaxVolumes: o.maxVolumes, OnDetached: cluster.prompt, Watch: watch, DeleteKind: devices.DeleteKind, Registerer: metrics.Registry,
	})
	if err != nil {
		return err
	}
	csi, err := driver.NewServer(driver.ServerOptions{
		Endpoint:   o.endpoint,
		Identity:   driver.NewIdentity(driver.IdentityOptions{Version: buildVersion(), SnapshotMetadata: o.metadata.listen != ""}),
		Node:       service,
		Registerer: metrics.Registry,
	})
	if err != nil {
		return err
	}
	blocks, endpoint, err := o.metadata.server(kube, pools)
	if err != nil {
		return err
	}
	kube.QPS, kube.Burst = o.qps, o.burst
	cluster.o = clusterOptions{node: o.nodeName, metadata: endpoint, kube: kube, pools: pools, devices: devices, locks: locks, problems: watch.Problems, freezer: freezer,
		onRemove: func(id string) {
			if err := formats.Forget(id); err != nil {
				slog.Warn("mark of a mkfs stays", "volume", id, "error", err)
			}
		}}

	openSoon(ctx, pools)
	status := newNodeHealth(pools, devices)
	parts := newParts(ctx)
	// What the calls need outlives them.
	parts.after("pools", func(ctx context.Context) error {
		pools.Run(ctx, poolRetry, func(err error) { slog.Error("pool", "error", err) })
		return nil
	})
	parts.after("http", func(ctx context.Context) error { return status.serve(ctx, o.httpAddress) })
	parts.after("cluster", cluster.run)
	parts.after("watch", func(ctx context.Context) error { return watch.Run(ctx, devices.List, cluster.prompt) })
	parts.first("csi", csi.Start)
	for _, p := range pools.States() {
		parts.first("sweep", func(ctx context.Context) error { return sweep(ctx, service, p.Options.Name) })
	}
	if blocks != nil {
		parts.first("snapshot metadata", blocks.Start)
	}
	if o.register {
		parts.first("registration", func(ctx context.Context) error { return registerNode(ctx, o, devices, status) })
	}
	return parts.wait(func(ctx context.Context) error {
		return errors.Join(service.Close(ctx), cluster.stop(ctx))
	})
}

// poolPatience is how long the plugin waits for its pools before it answers: those that
// are open after that were worth it, and those that are not keep nobody's volumes waiting
// but their own.
const poolPatience = 10 * time.Second

// openSoon returns when all pools are open or have failed to, or when that takes too long.
func openSoon(ctx context.Context, pools *pool.Set) {
	tried := make(chan struct{})
	go func() {
		defer close(tried)
		if _, err := pools.Open(ctx); err != nil {
			slog.Error("pools not ready, trying again", "error", err)
		}
	}()
	select {
	case <-tried:
	case <-time.After(poolPatience):
		slog.Warn("pools take long to open, going on without those that have not")
	}
}

// poolRetry is how long a pool that could not be opened is left alone.
const poolRetry = 15 * time.Second

// sweepEvery is how often ephemeral volumes that nobody wants are looked for, after
// the first time at the start.
const sweepEvery = 10 * time.Minute

// sweep does so for one pool, whose disk may hang.
func sweep(ctx context.Context, service *node.Service, name string) error {
	for {
		removed, err := service.Sweep(ctx, name)
		if len(removed) > 0 {
			slog.Info("ephemeral volumes left behind were removed", "pool", name, "volumes", removed)
		}
		if err != nil && ctx.Err() == nil {
			slog.Error("ephemeral volumes left behind stay", "pool", name, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(sweepEvery):
		}
	}
}

// registerNode offers the driver to kubelet once the device server answers: kubelet
// asks at once how many volumes the node takes, and a plugin that can't say is
// refused.
func registerNode(ctx context.Context, o nodeOptions, devices *serverclient.Client, status *nodeHealth) error {
	for waited := 0; ; waited++ {
		if _, err := devices.Info(ctx); err == nil {
			break
		} else if waited%20 == 0 {
			slog.Info("waiting for the device server", "socket", o.serverSocket, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(500 * time.Millisecond):
		}
	}
	csiSocket, err := driver.ParseEndpoint(o.endpoint)
	if err != nil {
		return err
	}
	r := node.NewRegistration(node.RegistrationOptions{
		Socket:    filepath.Join(o.kubeletDir, "plugins_registry", driver.Name+"-reg.sock"),
		CSISocket: csiSocket,
		OnRegistered: func() {
			slog.Info("registered with kubelet", "node", o.nodeName)
			status.registered.Store(true)
		},
	})
	return r.Run(ctx)
}
