//go:build sanity

package sanity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

const nodeName = "sanity"

// deployment is the driver's three roles and the API server they talk to.
type deployment struct {
	dir    string
	api    *envtest.Environment
	client client.Client
	roles  []*role // in the order of their start
}

var d *deployment

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("/var/tmp", "sanity")
	if err == nil {
		d = &deployment{dir: dir}
		err = d.start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the driver:", err)
		code = 1
	} else {
		code = m.Run()
	}
	if err := d.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the driver:", err)
		code = max(code, 1)
	}
	return code
}

func (d *deployment) path(name string) string    { return filepath.Join(d.dir, name) }
func (d *deployment) controllerEndpoint() string { return "unix://" + d.path("controller.sock") }
func (d *deployment) nodeEndpoint() string {
	return "unix://" + d.path("kubelet/plugins/csi-ublk.io/csi.sock")
}

func (d *deployment) start() error {
	for _, dir := range []string{"kubelet/plugins", "kubelet/plugins_registry", "state"} {
		if err := os.MkdirAll(d.path(dir), 0o755); err != nil {
			return err
		}
	}
	// As on a node: the server gets the pools that the node role mounts, and
	// nothing of what the volumes' users do.
	if out, err := exec.Command("mount", "--make-rshared", "/").CombinedOutput(); err != nil {
		return fmt.Errorf("share mounts: %w: %s", err, out)
	}
	config := "pools:\n- {name: default, kind: device, device: /dev/data}\n"
	if err := os.WriteFile(d.path("node.yaml"), []byte(config), 0o644); err != nil {
		return err
	}
	if err := d.startAPI(); err != nil {
		return fmt.Errorf("start the API server: %w", err)
	}
	return d.startRoles()
}

func (d *deployment) startAPI() error {
	etcd, err := exec.LookPath("etcd")
	if err != nil {
		return err
	}
	d.api = &envtest.Environment{
		BinaryAssetsDirectory:    filepath.Dir(etcd),
		CRDDirectoryPaths:        []string{"../../charts/csi-ublk/files/crds"},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 3 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	server := d.api.ControlPlane.GetAPIServer()
	// The guest has no network, and so no address that could be found.
	server.Configure().Set("advertise-address", "10.0.0.1")
	log, err := os.Create(d.path("kube-apiserver.log"))
	if err != nil {
		return err
	}
	server.Out, server.Err = log, log
	config, err := d.api.Start()
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w; its log:\n%s", err, text[max(0, len(text)-4000):])
	}
	if err := os.WriteFile(d.path("kubeconfig"), d.api.KubeConfig, 0o600); err != nil {
		return err
	}
	s := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		return err
	}
	if d.client, err = client.New(config, client.Options{Scheme: s}); err != nil {
		return err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.client.Create(ctx, node); err != nil {
		return err
	}
	node.Spec.Taints = nil // admission marks a new node as not ready; there is no controller to unmark it
	if err := d.client.Update(ctx, node); err != nil {
		return err
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return d.client.Status().Update(ctx, node)
}

func (d *deployment) startRoles() error {
	for _, r := range []struct {
		name, port string
		args       []string
	}{
		{"server", "9810", []string{"unshare", "--mount", "--propagation", "slave", "csi-ublk", "server",
			"--state-dir", d.path("state"), "--socket", d.path("server.sock")}},
		{"node", "9809", []string{"csi-ublk", "node", "--node-name", nodeName, "--config", d.path("node.yaml"),
			"--state-dir", d.path("state"), "--server-socket", d.path("server.sock"), "--kubelet-dir", d.path("kubelet"),
			"--kubeconfig", d.path("kubeconfig")}},
		{"controller", "9808", []string{"csi-ublk", "controller", "--endpoint", d.controllerEndpoint(),
			"--leader-election-namespace", "default", "--kubeconfig", d.path("kubeconfig")}},
	} {
		started, err := startRole(d.dir, r.name, r.args...)
		if err != nil {
			return err
		}
		d.roles = append(d.roles, started)
		if r.name == "node" {
			if err := d.registerAsKubelet(); err != nil {
				return fmt.Errorf("%w; the node role's log:\n%s", err, started.tail())
			}
		}
		if err := started.ready("http://127.0.0.1:"+r.port+"/readyz", time.Minute); err != nil {
			return err
		}
	}
	return nil
}

// stop ends all in the reverse order, so that the last device is gone before its
// server.
func (d *deployment) stop() error {
	if d == nil {
		return nil
	}
	var errs []error
	for i := len(d.roles) - 1; i >= 0; i-- {
		errs = append(errs, d.roles[i].stop())
	}
	if d.api != nil {
		errs = append(errs, d.api.Stop())
	}
	return errors.Join(errs...)
}

// logs are the ends of all roles' logs, for a failure's report.
func (d *deployment) logs() string {
	var text string
	for _, r := range d.roles {
		text += "--- " + r.name + "\n" + r.tail()
	}
	return text
}
