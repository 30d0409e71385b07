//go:build kube

package apiserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// What all tests share: one API server, and one controller that holds the lease.
// Tests keep apart by the names of their nodes and pools.
var (
	api        client.WithWatch
	kubeconfig string // file
	binary     string // csi-ublk
	leader     *replica
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "csi-ublk-apiserver-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "csi-ublk")
	build := exec.Command("go", append(append([]string{"build"}, buildFlags...), "-o", binary, "../../cmd/csi-ublk")...)
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build csi-ublk: %w\n%s", err, out)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return 0, err
		}
	}
	env := &envtest.Environment{
		Scheme:                scheme,
		CRDDirectoryPaths:     []string{"../../charts/csi-ublk/files/crds"},
		ErrorIfCRDPathMissing: true,
		// Seconds on an idle machine; a loaded one must not fail for that.
		ControlPlaneStartTimeout: 3 * time.Minute,
	}
	cfg, err := env.Start()
	if err != nil {
		return 0, fmt.Errorf("start kube-apiserver and etcd (set TEST_ASSET_KUBE_APISERVER and TEST_ASSET_ETCD): %w", err)
	}
	defer func() {
		if stopErr := env.Stop(); err == nil {
			err = stopErr
		}
	}()
	cfg.QPS, cfg.Burst = -1, -1
	ctrl.SetLogger(logr.Discard()) // of reconcilers that run here
	if api, err = client.NewWithWatch(cfg, client.Options{Scheme: scheme}); err != nil {
		return 0, err
	}
	kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, env.KubeConfig, 0o600); err != nil {
		return 0, err
	}
	if leader, err = startReplica(filepath.Join(dir, "leader")); err != nil {
		return 0, err
	}
	defer func() {
		select {
		case <-leader.exited:
			log, _ := os.ReadFile(leader.log)
			fmt.Fprintf(os.Stderr, "the leader ended by itself: %v\n%s\n", leader.err, log)
		default:
		}
		if stopErr := leader.stop(); err == nil {
			err = stopErr
		}
	}()
	if err := leader.awaitReady(context.Background()); err != nil {
		return 0, err
	}
	return m.Run(), nil
}
