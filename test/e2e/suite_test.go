//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

const (
	driverName  = "csi-ublk.io"
	topologyKey = "topology.csi-ublk.io/node"
)

// suite is the cluster under test.
type suite struct {
	client.Client
	config *rest.Config
	image  string
	// namespace of the driver's own pods
	namespace string
	// stateDir is the driver's on every node.
	stateDir string
}

var s *suite

func TestMain(m *testing.M) {
	var err error
	if s, err = connect(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// connect reads KUBECONFIG and finds the driver in the cluster. A cluster
// without the driver is an error: nothing here is skipped for want of it.
func connect() (*suite, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, fmt.Errorf("read KUBECONFIG %q: %w", os.Getenv("KUBECONFIG"), err)
	}
	config.QPS, config.Burst = 200, 400
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	image := os.Getenv("E2E_IMAGE")
	if image == "" {
		image = "docker.io/library/busybox:1.37"
	}
	s := &suite{Client: c, config: config, image: image}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.MatchingLabels{"app.kubernetes.io/name": "csi-ublk", "app.kubernetes.io/component": "node"}); err != nil {
		return nil, fmt.Errorf("list the driver's node pods: %w", err)
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("%s has no csi-ublk node pods: install the chart first", config.Host)
	}
	s.namespace = pods.Items[0].Namespace
	for _, arg := range pods.Items[0].Spec.Containers[0].Args {
		if dir, ok := strings.CutPrefix(arg, "--state-dir="); ok {
			s.stateDir = dir
		}
	}
	if s.stateDir == "" {
		return nil, fmt.Errorf("pod %s/%s of the driver has no --state-dir in its arguments", s.namespace, pods.Items[0].Name)
	}
	return s, nil
}

// newNamespace makes a namespace for one test and deletes it afterwards.
func newNamespace(t *testing.T) string {
	t.Helper()
	base := strings.ToLower(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name()))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: strings.Trim(base[:min(len(base), 40)], "-") + "-",
		Labels:       map[string]string{"pod-security.kubernetes.io/enforce": "privileged", "csi-ublk.io/e2e": ""},
	}}
	if err := s.Create(t.Context(), ns); err != nil {
		t.Fatalf("create namespace: %v", err)
	}
	t.Cleanup(func() {
		// t.Context is over by now
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if t.Failed() {
			dump(ctx, t, ns.Name)
		}
		if err := s.Delete(ctx, ns); err != nil {
			t.Errorf("delete namespace %s: %v", ns.Name, err)
		}
	})
	return ns.Name
}

// dump logs what a person would ask for first when a test failed.
func dump(ctx context.Context, t *testing.T, namespace string) {
	var events corev1.EventList
	if err := s.List(ctx, &events, client.InNamespace(namespace)); err == nil {
		for _, e := range events.Items {
			t.Logf("event %s/%s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	var volumes v1alpha1.UblkVolumeList
	if err := s.List(ctx, &volumes); err == nil {
		for _, v := range volumes.Items {
			t.Logf("ublkvolume %s: spec %+v status %+v", v.Name, v.Spec, v.Status)
		}
	}
	var nodes v1alpha1.UblkNodeList
	if err := s.List(ctx, &nodes); err == nil {
		for _, n := range nodes.Items {
			t.Logf("ublknode %s: %+v", n.Name, n.Status)
		}
	}
}

// eventually waits until check answers nil, at most limit.
func eventually(t *testing.T, limit time.Duration, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	start := time.Now()
	for {
		err := check(ctx)
		if err == nil {
			t.Logf("%s after %s", what, time.Since(start).Round(100*time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		case <-time.After(250 * time.Millisecond):
		}
	}
}
