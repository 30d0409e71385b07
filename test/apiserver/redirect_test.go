//go:build kube

package apiserver

import (
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

const selectedNode = "volume.kubernetes.io/selected-node"

// claim makes a claim for which the scheduler has selected a node.
func claim(t *testing.T, name, node string) *corev1.PersistentVolumeClaim {
	t.Helper()
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{selectedNode: node, "mine": "stays"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Mi")}},
		},
	}
	must(t, api.Create(t.Context(), c))
	return c
}

// Nobody is sent to a node that does not exist, where there is nothing to copy any more.
func TestCopiesOfWhatWentWithItsNode(t *testing.T) {
	n := newNode(t, "lost-1", "lost", 100*mib)
	newNode(t, "lost-2", "lost", 100*mib)
	seen(t, "lost-1", "lost", 100*mib)
	seen(t, "lost-2", "lost", 100*mib)
	_, err := create(t, request("lost-v", "lost", 10*mib, "lost-1"))
	must(t, err)
	c := claim(t, "lost-claim", "lost-2")
	n.vanish()
	r := request("lost-x", "lost", 10*mib, "lost-2")
	r.VolumeContentSource = fromVolume("lost-v")
	r.Parameters["csi.storage.k8s.io/pvc/namespace"], r.Parameters["csi.storage.k8s.io/pvc/name"] = "default", c.Name
	_, err = create(t, r)
	want(t, err, codes.FailedPrecondition, "its node lost-1 does not exist any more")
	must(t, api.Get(t.Context(), client.ObjectKeyFromObject(c), c))
	if c.Annotations[selectedNode] != "lost-2" {
		t.Errorf("the claim was sent to %s", c.Annotations[selectedNode])
	}
	must(t, remove(t, "lost-v"))
}

// A claim that waits for its first pod is provisioned where its source is, whatever
// node the scheduler picked: that node would be picked again and again.
func TestClaimsOfCopiesGoWhereTheSourceIs(t *testing.T) {
	newNode(t, "redir-1", "redir", 100*mib)
	newNode(t, "redir-2", "redir", 100*mib)
	newNode(t, "redir-3", "redir", 100*mib)
	seen(t, "redir-1", "redir", 100*mib)
	seen(t, "redir-2", "redir", 100*mib)
	_, err := create(t, request("redir-v", "redir", 10*mib, "redir-1"))
	must(t, err)
	t.Cleanup(func() { must(t, remove(t, "redir-v")) })

	for name, x := range map[string]struct {
		claim, selected string
		nodes           []string // that the call allows
		code            codes.Code
		now             string // selected then
	}{
		"the wrong one is selected":     {"redir-a", "redir-2", []string{"redir-2"}, codes.FailedPrecondition, "redir-1"},
		"the right one is, by now":      {"redir-b", "redir-1", []string{"redir-2"}, codes.FailedPrecondition, "redir-1"},
		"another one is, by now":        {"redir-c", "redir-3", []string{"redir-2"}, codes.ResourceExhausted, "redir-3"},
		"several are allowed":           {"redir-d", "redir-2", []string{"redir-2", "redir-3"}, codes.ResourceExhausted, "redir-2"},
		"the claim is gone":             {"redir-none", "", []string{"redir-2"}, codes.ResourceExhausted, ""},
		"it is not known for which one": {"", "", []string{"redir-2"}, codes.ResourceExhausted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := request("redir-x", "redir", 10*mib, x.nodes...)
			r.VolumeContentSource = fromVolume("redir-v")
			r.Parameters["csi.storage.k8s.io/pvc/namespace"], r.Parameters["csi.storage.k8s.io/pvc/name"] = "default", x.claim
			var c *corev1.PersistentVolumeClaim
			if x.selected != "" {
				c = claim(t, x.claim, x.selected)
			}
			_, err := create(t, r)
			want(t, err, x.code, "its source is on node redir-1")
			if get(t, "redir-x") != nil {
				t.Error("an object was left")
			}
			if c == nil {
				return
			}
			must(t, api.Get(t.Context(), client.ObjectKeyFromObject(c), c))
			if c.Annotations[selectedNode] != x.now || c.Annotations["mine"] != "stays" {
				t.Errorf("annotations %v, want node %s selected", c.Annotations, x.now)
			}
		})
	}
	// The provisioner reads the claim again and asks for that node.
	r := request("redir-x", "redir", 10*mib, "redir-1")
	r.VolumeContentSource = fromVolume("redir-v")
	v, err := create(t, r)
	must(t, err)
	if v.AccessibleTopology[0].Segments[driver.TopologyKey] != "redir-1" {
		t.Errorf("made at %v", v.AccessibleTopology)
	}
	must(t, remove(t, "redir-x"))
}
