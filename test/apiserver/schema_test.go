//go:build kube

package apiserver

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// volume is a valid object on a node that nobody plays.
func volume(name string) *v1alpha1.UblkVolume {
	return &v1alpha1.UblkVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.UblkVolumeSpec{Node: "schema-node", Pool: "default", CapacityBytes: 4096, CSIName: name},
	}
}

func TestSchemaRefusesBadVolumes(t *testing.T) {
	cases := map[string]struct {
		change func(*v1alpha1.UblkVolumeSpec)
		says   string
	}{
		"no node":                 {func(s *v1alpha1.UblkVolumeSpec) { s.Node = "" }, "spec.node"},
		"a pool that is a path":   {func(s *v1alpha1.UblkVolumeSpec) { s.Pool = "a/b" }, "spec.pool"},
		"half a block":            {func(s *v1alpha1.UblkVolumeSpec) { s.CapacityBytes = 6144 }, "must be a multiple of 4096"},
		"no size":                 {func(s *v1alpha1.UblkVolumeSpec) { s.CapacityBytes = 0 }, "spec.capacityBytes"},
		"no CSI name":             {func(s *v1alpha1.UblkVolumeSpec) { s.CSIName = "" }, "spec.csiName"},
		"a CSI name of 129 bytes": {func(s *v1alpha1.UblkVolumeSpec) { s.CSIName = strings.Repeat("a", 129) }, "spec.csiName"},
		"33 queues":               {func(s *v1alpha1.UblkVolumeSpec) { s.Queues = 33 }, "spec.queues"},
		"a depth of 1025":         {func(s *v1alpha1.UblkVolumeSpec) { s.QueueDepth = 1025 }, "spec.queueDepth"},
		"an unknown state":        {func(s *v1alpha1.UblkVolumeSpec) { s.State = "Gone" }, "spec.state"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v := volume("schema-bad")
			c.change(&v.Spec)
			err := api.Create(t.Context(), v)
			if err == nil {
				_ = api.Delete(t.Context(), v)
			}
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want it to be refused for %s", err, c.says)
			}
		})
	}
}

func TestSchemaDefaults(t *testing.T) {
	v := volume("schema-defaults")
	must(t, api.Create(t.Context(), v))
	t.Cleanup(func() { _ = api.Delete(t.Context(), v) })
	if v.Spec.Queues != 1 || v.Spec.QueueDepth != 64 || v.Spec.State != v1alpha1.VolumePresent {
		t.Errorf("got %+v", v.Spec)
	}
}

func TestSchemaKeepsImmutableFields(t *testing.T) {
	// On a node that is there and does nothing, so that nobody else writes: the
	// controller would clean up after one that is not.
	n := newNode(t, "schema-1", "schema", 100*mib)
	n.tell(func(n *node) { n.silent = true })
	v := volume("schema-immutable")
	v.Finalizers = []string{v1alpha1.VolumeFinalizer}
	v.Spec.Node, v.Spec.CapacityBytes = "schema-1", 8192
	must(t, api.Create(t.Context(), v))
	defer func() {
		n.tell(func(n *node) { n.silent = false })
		must(t, remove(t, v.Name))
	}()
	cases := map[string]struct {
		change func(*v1alpha1.UblkVolumeSpec)
		says   string // "" means allowed
	}{
		"the node":         {func(s *v1alpha1.UblkVolumeSpec) { s.Node = "other" }, "spec.node is immutable"},
		"the pool":         {func(s *v1alpha1.UblkVolumeSpec) { s.Pool = "other" }, "spec.pool is immutable"},
		"the CSI name":     {func(s *v1alpha1.UblkVolumeSpec) { s.CSIName = "other" }, "spec.csiName is immutable"},
		"the queues":       {func(s *v1alpha1.UblkVolumeSpec) { s.Queues = 2 }, "spec.queues and spec.queueDepth are immutable"},
		"the queue depth":  {func(s *v1alpha1.UblkVolumeSpec) { s.QueueDepth = 2 }, "spec.queues and spec.queueDepth are immutable"},
		"a smaller size":   {func(s *v1alpha1.UblkVolumeSpec) { s.CapacityBytes = 4096 }, "spec.capacityBytes can only grow"},
		"a larger size":    {func(s *v1alpha1.UblkVolumeSpec) { s.CapacityBytes = 12288 }, ""},
		"the wanted state": {func(s *v1alpha1.UblkVolumeSpec) { s.State = v1alpha1.VolumeAbsent }, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			now := get(t, v.Name)
			now.Spec.CapacityBytes = max(now.Spec.CapacityBytes, 8192)
			c.change(&now.Spec)
			err := api.Update(t.Context(), now)
			if c.says == "" {
				must(t, err)
				return
			}
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
	t.Run("a growth that has not come about can be given up", func(t *testing.T) {
		now := get(t, v.Name)
		now.Status.CapacityBytes = 8192
		must(t, api.Status().Update(t.Context(), now))
		now.Spec.CapacityBytes = 16384
		must(t, api.Update(t.Context(), now))
		now.Spec.CapacityBytes = 4096
		if err := api.Update(t.Context(), now); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "give up a growth") {
			t.Errorf("less than the file has: %v", err)
		}
		now = get(t, v.Name)
		now.Spec.CapacityBytes = 8192
		must(t, api.Update(t.Context(), now))
	})
	t.Run("a status written with the spec is not taken", func(t *testing.T) {
		now := get(t, v.Name)
		now.Status.AllocatedBytes = 1
		must(t, api.Update(t.Context(), now))
		if get(t, v.Name).Status.AllocatedBytes != 0 {
			t.Error("the status changed without the status subresource")
		}
	})
}
