//go:build kube

package apiserver

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	pluginApp = "node-plugin"
	// Long enough for a node of a test to be made within it, on a loaded machine.
	pluginGrace = 3 * time.Second
)

// pluginPod is the pod of a node's plugin, in the place of the chart's.
func pluginPod(node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "plugin-" + node, Namespace: "default", Labels: map[string]string{"app": pluginApp}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "plugin", Image: "none"}}},
	}
}

// setPluginReady does what the node's kubelet would.
func (n *node) setPluginReady(ready corev1.ConditionStatus) {
	n.t.Helper()
	p := &corev1.Pod{}
	must(n.t, api.Get(context.Background(), client.ObjectKeyFromObject(pluginPod(n.name)), p))
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	must(n.t, api.Status().Update(context.Background(), p))
}

// A plugin that is killed for good does not get to say so: its UblkNode stays Ready.
func TestANodeWhosePluginIsGoneTakesNoVolume(t *testing.T) {
	n := newNode(t, "unplugged", "plugin", 1<<30)
	seen(t, n.name, "plugin", 1<<30)
	v, err := create(t, request("plugin-before", "plugin", 64*mib))
	must(t, err)

	n.tell(func(n *node) { n.silent = true })
	n.setPluginReady(corev1.ConditionFalse)
	const want = "no pod of its csi-ublk node plugin is ready since"
	seen(t, n.name, "plugin", 0)
	_, err = create(t, request("plugin-refused", "plugin", 64*mib))
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), want) {
		t.Errorf("CreateVolume answers %v", err)
	}
	began := time.Now()
	if err := remove(t, v.VolumeId); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), want) {
		t.Errorf("DeleteVolume answers %v", err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("DeleteVolume took %v: it waited for a plugin that is gone", d)
	}

	n.tell(func(n *node) { n.silent = false })
	n.setPluginReady(corev1.ConditionTrue)
	must(t, remove(t, v.VolumeId))
}

// A volume and a snapshot whose node was lost before it made them: the calls that go on
// waiting are answered at once, for a sidecar has few workers.
func TestWhatALostNodeIsToMakeIsNotWaitedFor(t *testing.T) {
	n := newNode(t, "lost", "lost", 1<<30)
	seen(t, n.name, "lost", 1<<30)
	v, err := create(t, request("lost-source", "lost", 64*mib))
	must(t, err)
	n.tell(func(n *node) { n.silent = true })
	calls := map[string]func(context.Context) error{
		"CreateVolume": func(ctx context.Context) error {
			_, err := leader.CreateVolume(ctx, request("lost-volume", "lost", 64*mib))
			return err
		},
		"CreateSnapshot": func(ctx context.Context) error {
			_, err := leader.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "lost-snapshot", SourceVolumeId: v.VolumeId})
			return err
		},
	}
	within := func(d time.Duration, call func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return call(ctx)
	}
	for name, call := range calls {
		if err := within(2*time.Second, call); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%s of a node that may still answer: %v", name, err)
		}
	}
	n.setNodeReady(corev1.ConditionFalse)
	seen(t, n.name, "lost", 0)
	for name, call := range calls {
		began := time.Now()
		err := within(20*time.Second, call)
		if took := time.Since(began); status.Code(err) != codes.Unavailable || took > 10*time.Second {
			t.Errorf("%s of a node that is lost: %v after %v", name, err, took)
		}
	}
	n.setNodeReady(corev1.ConditionTrue)
	n.tell(func(n *node) { n.silent = false })
	for name, call := range calls {
		if err := within(20*time.Second, call); err != nil {
			t.Errorf("%s when the node is back: %v", name, err)
		}
	}
	must(t, unsnap(t, "lost-snapshot"))
	must(t, remove(t, "lost-volume"))
	must(t, remove(t, v.VolumeId))
}
