//go:build kube

package apiserver

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

func modify(t *testing.T, id string, parameters map[string]string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := leader.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: parameters})
	return err
}

func wantLimits(t *testing.T, name string, want *v1alpha1.VolumeLimits) {
	t.Helper()
	v := get(t, name)
	for what, got := range map[string]*v1alpha1.VolumeLimits{"spec": v.Spec.Limits, "status": v.Status.Limits} {
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s.limits %+v, want %+v", what, got, want)
		}
	}
}

func TestModify(t *testing.T) {
	newNode(t, "modify", "modify", 100*mib)
	seen(t, "modify", "modify", 100*mib)
	r := request("modify", "modify", 10*mib)
	r.Parameters["iops"], r.Parameters["burst"] = "100", "1s"
	r.MutableParameters = map[string]string{"iops": "200", "bandwidth": "1Mi"}
	for range 2 {
		_, err := create(t, r)
		must(t, err)
	}
	t.Cleanup(func() { must(t, remove(t, "modify")) })
	wantLimits(t, "modify", &v1alpha1.VolumeLimits{IOPS: 200, Bandwidth: mib, BurstMillis: 1000})
	r.MutableParameters["iops"] = "300"
	_, err := create(t, r)
	want(t, err, codes.AlreadyExists, "its limits are")

	for name, c := range map[string]struct {
		parameters map[string]string
		says       string
	}{
		"a key that is none":       {map[string]string{"iops": "100", "pool": "x"}, `mutable_parameters["pool"] is not a parameter`},
		"a value that is none":     {map[string]string{"iops": "100", "readBandwidth": "fast"}, `mutable_parameters["readBandwidth"] "fast"`},
		"a burst that is too long": {map[string]string{"iops": "100", "burst": "2m"}, `mutable_parameters["burst"] "2m"`},
	} {
		t.Run(name+" changes nothing", func(t *testing.T) {
			want(t, modify(t, "modify", c.parameters), codes.InvalidArgument, c.says)
			wantLimits(t, "modify", &v1alpha1.VolumeLimits{IOPS: 200, Bandwidth: mib, BurstMillis: 1000})
		})
	}
	want(t, modify(t, "", nil), codes.InvalidArgument, "volume_id is empty")
	want(t, modify(t, "unknown", map[string]string{"iops": "100"}), codes.NotFound, "does not exist")

	generation := get(t, "modify").Generation
	for range 2 {
		must(t, modify(t, "modify", map[string]string{"readIOPS": "50", "csi.storage.k8s.io/pvc/name": "x"}))
	}
	must(t, modify(t, "modify", nil))
	wantLimits(t, "modify", &v1alpha1.VolumeLimits{IOPS: 200, ReadIOPS: 50, Bandwidth: mib, BurstMillis: 1000})
	if got := get(t, "modify").Generation; got != generation+1 {
		t.Errorf("%d changes written for one", got-generation)
	}
	must(t, modify(t, "modify", map[string]string{"iops": "0", "readIOPS": "0", "bandwidth": "0", "burst": "0s"}))
	wantLimits(t, "modify", nil)
}

func TestModifyWaitsForTheNode(t *testing.T) {
	n := newNode(t, "modify-late", "modify-late", 100*mib)
	seen(t, "modify-late", "modify-late", 100*mib)
	_, err := create(t, request("modify-late", "modify-late", 10*mib))
	must(t, err)
	t.Cleanup(func() { must(t, remove(t, "modify-late")) })
	n.tell(func(n *node) { n.silent = true })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = leader.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: "modify-late", MutableParameters: map[string]string{"iops": "50"}})
	want(t, err, codes.DeadlineExceeded, "waits for node modify-late to put its limits in force")
	n.tell(func(n *node) { n.silent = false })
	must(t, modify(t, "modify-late", map[string]string{"iops": "50"}))
	wantLimits(t, "modify-late", &v1alpha1.VolumeLimits{IOPS: 50})

	n.condition(v1alpha1.NodeReady, "stopped")
	eventually(t, "the plugin is down", func() bool { return capacityOf(t, "modify-late", "modify-late") == 0 })
	want(t, modify(t, "modify-late", map[string]string{"iops": "60"}), codes.Unavailable, "plugin is not ready (stopped)")
	n.setUblk(func(s *v1alpha1.UblkNodeStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: "Ready"})
	})
	seen(t, "modify-late", "modify-late", 90*mib)
}
