//go:build helm

package chart

import (
	"context"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

const namespace = "storage"

// cluster is a real API server that has all objects of the chart.
type cluster struct {
	config *rest.Config
	scheme *runtime.Scheme
	admin  client.Client
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	env := &envtest.Environment{ControlPlaneStartTimeout: 3 * time.Minute}
	config, err := env.Start()
	if err != nil {
		t.Fatalf("start etcd and kube-apiserver (TEST_ASSET_ETCD, TEST_ASSET_KUBE_APISERVER): %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	c := &cluster{config: config, scheme: runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(c.scheme); err != nil {
			t.Fatal(err)
		}
	}
	c.admin = c.as(t, "", "")
	c.install(t)
	return c
}

// install creates what the chart renders, as helm would, with all that has rights.
func (c *cluster) install(t *testing.T) {
	t.Helper()
	if err := c.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	objects, err := render(t, kubeVersions[1], "--values", metadataValues)
	if err != nil {
		t.Fatal(err)
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, o := range objects {
		if crd, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
			crds = append(crds, crd)
			continue
		}
		if err := c.admin.Create(t.Context(), o.(client.Object)); err != nil {
			t.Errorf("the API server refuses %T: %v", o, err)
		}
	}
	if _, err := envtest.InstallCRDs(c.config, envtest.CRDInstallOptions{CRDs: crds}); err != nil {
		t.Fatalf("install CRDs: %v", err)
	}
}

// as returns a client with the rights of a service account of the chart, as a
// token has them that is bound to a pod on node. "" is an administrator.
func (c *cluster) as(t *testing.T, account, node string) client.Client {
	t.Helper()
	config := rest.CopyConfig(c.config)
	if account != "" {
		config.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:" + namespace + ":" + account,
			Groups:   []string{"system:serviceaccounts", "system:authenticated"},
		}
		if node != "" {
			config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
		}
	}
	config.QPS = -1
	cl, err := client.New(config, client.Options{Scheme: c.scheme})
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

func (c *cluster) volume(t *testing.T, name, node string) {
	t.Helper()
	v := &v1alpha1.UblkVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.VolumeFinalizer}},
		Spec:       v1alpha1.UblkVolumeSpec{Node: node, Pool: "default", CapacityBytes: 1 << 30, CSIName: name, Queues: 1, QueueDepth: 64, State: v1alpha1.VolumePresent},
	}
	if err := c.admin.Create(t.Context(), v); err != nil {
		t.Fatal(err)
	}
}

// change gets a volume as an administrator, edits it and patches it as cl.
func (c *cluster) change(cl client.Client, name string, edit func(*v1alpha1.UblkVolume), status bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	v := &v1alpha1.UblkVolume{}
	if err := c.admin.Get(ctx, client.ObjectKey{Name: name}, v); err != nil {
		return err
	}
	base := client.MergeFrom(v.DeepCopy())
	edit(v)
	if status {
		return cl.Status().Patch(ctx, v, base)
	}
	return cl.Patch(ctx, v, base)
}

func (c *cluster) snapshot(t *testing.T, name, node string) {
	t.Helper()
	s := &v1alpha1.UblkSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.SnapshotFinalizer}},
		Spec:       v1alpha1.UblkSnapshotSpec{Volume: "v", Node: node, Pool: "default", CSIName: name, SizeBytes: 1 << 30},
	}
	if err := c.admin.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// changeSnapshot is change for a snapshot.
func (c *cluster) changeSnapshot(cl client.Client, name string, edit func(*v1alpha1.UblkSnapshot), status bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s := &v1alpha1.UblkSnapshot{}
	if err := c.admin.Get(ctx, client.ObjectKey{Name: name}, s); err != nil {
		return err
	}
	base := client.MergeFrom(s.DeepCopy())
	edit(s)
	if status {
		return cl.Status().Patch(ctx, s, base)
	}
	return cl.Patch(ctx, s, base)
}

func TestRightsOfTheRoles(t *testing.T) {
	c := startCluster(t)
	c.volume(t, "mine", "n1")
	c.volume(t, "theirs", "n2")
	node, unbound := c.as(t, "csi-ublk-node", "n1"), c.as(t, "csi-ublk-node", "")
	controller, server := c.as(t, "csi-ublk-controller", "n1"), c.as(t, "csi-ublk-server", "n1")
	metadata := c.as(t, "csi-ublk-metadata", "n1")

	c.snapshot(t, "snap-mine", "n1")
	c.snapshot(t, "snap-theirs", "n2")
	cut := func(s *v1alpha1.UblkSnapshot) { s.Status.AllocatedBytes++ }
	allocated := func(v *v1alpha1.UblkVolume) { v.Status.AllocatedBytes++ }
	awaitPolicy(t, func() error { return c.change(node, "theirs", allocated, true) })

	ublkNode := func(name string) *v1alpha1.UblkNode {
		return &v1alpha1.UblkNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for _, step := range []struct {
		name    string
		do      func() error
		refusal string // part of the error; "" is none
	}{
		{"a node writes the status of its volume", func() error { return c.change(node, "mine", allocated, true) }, ""},
		{"a node does not write the status of another node's volume", func() error { return c.change(node, "theirs", allocated, true) }, "of n1 may not change ublkvolumes of node n2"},
		{"a token without a node writes nothing", func() error { return c.change(unbound, "mine", allocated, true) }, "the token names no node"},
		{"a node does not say what a volume should be", func() error {
			return c.change(node, "mine", func(v *v1alpha1.UblkVolume) { v.Spec.CapacityBytes *= 2 }, false)
		}, "status and the finalizers"},
		{"a node does not label its volume", func() error {
			return c.change(node, "mine", func(v *v1alpha1.UblkVolume) { v.Labels = map[string]string{"a": "b"} }, false)
		}, "status and the finalizers"},
		{"a node does not take the finalizer off another node's volume", func() error {
			return c.change(node, "theirs", func(v *v1alpha1.UblkVolume) { v.Finalizers = nil }, false)
		}, "of node n2"},
		{"a node takes the finalizer off its volume", func() error {
			return c.change(node, "mine", func(v *v1alpha1.UblkVolume) { v.Finalizers = nil }, false)
		}, ""},
		{"a node does not make volumes", func() error {
			return node.Create(t.Context(), &v1alpha1.UblkVolume{ObjectMeta: metav1.ObjectMeta{Name: "new"}})
		}, "forbidden"},
		{"a node makes its UblkNode", func() error { return node.Create(t.Context(), ublkNode("n1")) }, ""},
		{"a node makes no other UblkNode", func() error { return node.Create(t.Context(), ublkNode("n2")) }, "of node n2"},
		{"a node sees volumes", func() error { return node.List(t.Context(), &v1alpha1.UblkVolumeList{}) }, ""},
		{"a node sees no secrets", func() error { return node.List(t.Context(), &corev1.SecretList{}) }, "forbidden"},
		{"a node sees no pods", func() error { return node.List(t.Context(), &corev1.PodList{}) }, "forbidden"},
		{"a node writes the status of its snapshot", func() error { return c.changeSnapshot(node, "snap-mine", cut, true) }, ""},
		{"a node does not write the status of another node's snapshot", func() error { return c.changeSnapshot(node, "snap-theirs", cut, true) }, "of n1 may not change ublksnapshots of node n2"},
		{"a node does not label its snapshot", func() error {
			return c.changeSnapshot(node, "snap-mine", func(s *v1alpha1.UblkSnapshot) { s.Labels = map[string]string{"a": "b"} }, false)
		}, "status and the finalizers"},
		{"a node takes the finalizer off its snapshot", func() error {
			return c.changeSnapshot(node, "snap-mine", func(s *v1alpha1.UblkSnapshot) { s.Finalizers = nil }, false)
		}, ""},
		{"a node does not delete snapshots", func() error {
			return node.Delete(t.Context(), &v1alpha1.UblkSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-theirs"}})
		}, "forbidden"},
		{"a node asks whose a token is", func() error { return review(t, node) }, ""},
		{"the metadata role asks whose a token is", func() error { return review(t, metadata) }, ""},
		{"the controller does not", func() error { return review(t, controller) }, "forbidden"},
		{"the metadata role finds the node of a snapshot", func() error {
			return metadata.Get(t.Context(), client.ObjectKey{Name: "snap-theirs"}, &v1alpha1.UblkSnapshot{})
		}, ""},
		{"the metadata role does not write the status of a snapshot", func() error { return c.changeSnapshot(metadata, "snap-theirs", cut, true) }, "forbidden"},
		{"the metadata role sees no volumes", func() error { return metadata.List(t.Context(), &v1alpha1.UblkVolumeList{}) }, "forbidden"},
		{"the metadata role sees no secrets", func() error { return metadata.List(t.Context(), &corev1.SecretList{}) }, "forbidden"},
		{"the controller deletes snapshots", func() error {
			return controller.Delete(t.Context(), &v1alpha1.UblkSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-theirs"}})
		}, ""},
		{"the controller says what a volume should be", func() error {
			return c.change(controller, "theirs", func(v *v1alpha1.UblkVolume) { v.Spec.State = v1alpha1.VolumeAbsent }, false)
		}, ""},
		{"the controller sees nodes", func() error { return controller.List(t.Context(), &corev1.NodeList{}) }, ""},
		{"the controller sees no pods of the cluster", func() error { return controller.List(t.Context(), &corev1.PodList{}) }, "forbidden"},
		{"the controller sees the pods of the driver", func() error {
			return controller.List(t.Context(), &corev1.PodList{}, client.InNamespace(namespace))
		}, ""},
		{"the controller moves claims", func() error { return moveClaim(t, controller) }, ""},
		{"the controller writes the status of claims", func() error { return claimStatus(t, controller) }, ""},
		{"the controller sees no secrets", func() error { return controller.List(t.Context(), &corev1.SecretList{}) }, "forbidden"},
		{"the server sees nothing", func() error { return server.List(t.Context(), &v1alpha1.UblkVolumeList{}) }, "forbidden"},
	} {
		t.Run(step.name, func(t *testing.T) {
			err := step.do()
			if step.refusal == "" && err != nil || step.refusal != "" && (err == nil || !strings.Contains(err.Error(), step.refusal)) {
				t.Errorf("error %v, want %q", err, step.refusal)
			}
		})
	}
}

// review asks the API server whose a token is.
func review(t *testing.T, cl client.Client) error {
	return cl.Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "none"}})
}

// claimStatus patches the status of a claim, as the resizer does.
func claimStatus(t *testing.T, cl client.Client) error {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"}}
	err := cl.Status().Patch(t.Context(), claim, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Pending"}}`)))
	return client.IgnoreNotFound(err)
}

// moveClaim patches a claim's annotation, as the driver does for copies.
func moveClaim(t *testing.T, cl client.Client) error {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"}}
	err := cl.Patch(t.Context(), claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"n1"}}}`)))
	return client.IgnoreNotFound(err)
}

// awaitPolicy waits until the API server enforces the admission policy, which it
// compiles some time after it was created.
func awaitPolicy(t *testing.T, forbidden func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := forbidden()
		if err != nil && apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the admission policy is not enforced after a minute: %v", err)
		}
	}
}
