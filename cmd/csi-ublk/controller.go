package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/capacity"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/controller"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/kernel"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/orphan"
)

type controllerOptions struct {
	endpoint       string
	httpAddress    string
	leaseNamespace string
	leaseDuration  time.Duration
	kubeconfig     string
	qps            float32
	burst          int
	markNodes      bool
	taintWedged    bool
	pluginPods     string
	pluginGrace    time.Duration
	metadata       bool
}

// newControllerCommand is the controller role.
func newControllerCommand() *cobra.Command {
	var o controllerOptions
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Create and delete volumes for the cluster",
		Long: `controller is the CSI controller service, beside the sidecars that call it. It
picks the node of each volume, keeps the ledger of promised bytes and cleans up
after nodes that were deleted.

Of several replicas the one that holds the lease works; the others answer Probe
with "not ready" until it is theirs. A replica that loses the lease ends.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runController(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.endpoint, "endpoint", cmp.Or(os.Getenv("CSI_ENDPOINT"), "unix:///csi/csi.sock"), "unix socket of the CSI service; CSI_ENDPOINT in the environment")
	f.StringVar(&o.httpAddress, "http-address", ":9808", "address of /healthz, /readyz and /metrics; 0 for none")
	f.StringVar(&o.leaseNamespace, "leader-election-namespace", os.Getenv("NAMESPACE"), "namespace of the lease; empty for the pod's own")
	f.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long the lease of a dead replica blocks the next one")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; empty for the pod's service account")
	f.Float32Var(&o.qps, "kube-api-qps", 200, "requests a second to the API server")
	f.IntVar(&o.burst, "kube-api-burst", 400, "requests at once to the API server")
	f.BoolVar(&o.markNodes, "mark-nodes", true, "label nodes with how their kernel deletes devices, "+kernel.Label)
	f.BoolVar(&o.taintWedged, "taint-wedged-nodes", false, "taint nodes whose kernel does not answer, "+kernel.Taint+":NoSchedule; needs --mark-nodes")
	f.StringVar(&o.pluginPods, "node-plugin-pods", "", "label selector of the node plugin's pods, in the namespace of the lease, by which nodes are known whose plugin is gone; empty to look at none")
	f.DurationVar(&o.pluginGrace, "node-plugin-grace", 30*time.Second, "how long the node plugin may have no ready pod until its node takes no new volume")
	f.BoolVar(&o.metadata, "snapshot-metadata", false, "name the snapshot metadata service among the driver's capabilities; csi-ublk metadata serves it")
	return cmd
}

func runController(ctx context.Context, o controllerOptions) error {
	if o.taintWedged && !o.markNodes {
		return usagef("--taint-wedged-nodes needs --mark-nodes")
	}
	if o.pluginPods != "" && (o.leaseNamespace == "" || o.pluginGrace <= 0) {
		return usagef("--node-plugin-pods needs --leader-election-namespace and a --node-plugin-grace of more than 0")
	}
	if o.pluginPods == "" {
		o.pluginGrace = 0
	}
	mgr, err := newControllerManager(o)
	if err != nil {
		return err
	}
	service := controller.New(controller.Options{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Cache: mgr.GetCache(),
		Ledger: capacity.New(), PluginGrace: o.pluginGrace,
	})
	if err := mgr.Add(service); err != nil {
		return fmt.Errorf("add controller service: %w", err)
	}
	if err := orphan.Setup(mgr, orphan.Options{Client: mgr.GetClient(), Live: mgr.GetAPIReader()}); err != nil {
		return err
	}
	if o.markNodes {
		err := kernel.Setup(mgr, kernel.Options{Client: mgr.GetClient(), Events: mgr.GetEventRecorder("csi-ublk"), TaintWedged: o.taintWedged})
		if err != nil {
			return err
		}
	}
	server, err := driver.NewServer(driver.ServerOptions{
		Endpoint:   o.endpoint,
		Identity:   driver.NewIdentity(driver.IdentityOptions{Version: buildVersion(), Ready: service.Ready, SnapshotMetadata: o.metadata}),
		Controller: service,
		Group:      service,
		Gate:       service.Gate,
		Registerer: metrics.Registry,
	})
	if err != nil {
		return err
	}
	return serveController(ctx, server, mgr)
}

// serveController runs both until ctx ends or one fails. In an orderly end the
// calls come first: the ones in flight are finished, by the caches that still
// run and under the lease that is still held; only then is the lease released.
// When the manager ends first, the lease is lost, and no call may go on.
func serveController(ctx context.Context, server *driver.Server, mgr ctrl.Manager) error {
	mgrCtx, stopManager := context.WithCancel(context.WithoutCancel(ctx))
	defer stopManager()
	served, managed := make(chan error, 1), make(chan error, 1)
	go func() { served <- server.Start(ctx) }()
	go func() { managed <- mgr.Start(mgrCtx) }()
	select {
	case err := <-served:
		stopManager()
		return errors.Join(err, <-managed)
	case err := <-managed:
		server.Kill()
		<-served
		if err == nil {
			err = errors.New("ended unasked")
		}
		return fmt.Errorf("controller manager: %w", err)
	}
}

func newControllerManager(o controllerOptions) (ctrl.Manager, error) {
	cfg, err := kubeConfig(o.kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = o.qps, o.burst
	plugins, err := labels.Parse(o.pluginPods)
	if err != nil {
		return nil, usagef("--node-plugin-pods: %v", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme), metav1.AddMetaToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	// The ratios of controller-runtime's defaults: 15, 10 and 2 s.
	renew, retry := o.leaseDuration*2/3, o.leaseDuration*2/15
	alive := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                        scheme,
		LeaderElection:                true,
		LeaderElectionID:              "csi-ublk-controller",
		LeaderElectionNamespace:       o.leaseNamespace,
		LeaderElectionReleaseOnCancel: true, // the process ends right after
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
		Cache: cache.Options{
			// The kinds of the service and no more: a read of any other is a bug, and would
			// otherwise become a watch of its own.
			ReaderFailOnMissingInformer: true,
			DefaultTransform:            cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Node{}: {Transform: slimNode},
				&corev1.Pod{}:  {Transform: slimPod, Namespaces: map[string]cache.Config{o.leaseNamespace: {LabelSelector: plugins}}},
			},
		},
		// A standby is alive and ready to take over: it says ok as well.
		Metrics: metricsserver.Options{BindAddress: o.httpAddress, ExtraHandlers: map[string]http.Handler{"/healthz": alive, "/readyz": alive}},
	})
	if err != nil {
		return nil, fmt.Errorf("make controller manager: %w", err)
	}
	return mgr, nil
}

// slimNode keeps of a Node what is read: on large clusters images and addresses
// are most of its bytes.
func slimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	kind, labelled := n.Labels[kernel.Label]
	n.ManagedFields, n.Annotations, n.Labels = nil, nil, nil
	if labelled {
		n.Labels = map[string]string{kernel.Label: kind}
	}
	n.Status = corev1.NodeStatus{Conditions: n.Status.Conditions}
	return n, nil
}

// slimPod keeps of a Pod where it is and whether it is ready.
func slimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion},
		Spec:       corev1.PodSpec{NodeName: p.Spec.NodeName},
		Status:     corev1.PodStatus{Conditions: p.Status.Conditions},
	}, nil
}

// kubeConfig is the way to the API server: a kubeconfig file, or what a pod has.
func kubeConfig(file string) (*rest.Config, error) {
	var cfg *rest.Config
	var err error
	if file != "" {
		cfg, err = clientcmd.BuildConfigFromFlags("", file)
	} else {
		cfg, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	return cfg, nil
}
