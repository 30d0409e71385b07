//go:build kube

package apiserver

import (
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

func TestListVolumes(t *testing.T) {
	newNode(t, "list-1", "list", 1000*mib)
	seen(t, "list-1", "list", 1000*mib)
	var expected []string
	for i := range 7 {
		name := fmt.Sprintf("list-v-%d", i)
		_, err := create(t, request(name, "list", mib))
		must(t, err)
		t.Cleanup(func() { must(t, remove(t, name)) })
		expected = append(expected, name)
	}
	for _, size := range []int32{0, 1, 3, 100} {
		var got []string
		token := ""
		for pages := 0; ; pages++ {
			r, err := leader.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: size, StartingToken: token})
			must(t, err)
			if size > 0 && len(r.Entries) > int(size) {
				t.Errorf("page of %d entries, asked for %d", len(r.Entries), size)
			}
			for _, e := range r.Entries {
				if strings.HasPrefix(e.Volume.VolumeId, "list-v-") {
					got = append(got, e.Volume.VolumeId)
				}
			}
			if token = r.NextToken; token == "" {
				break
			}
			if pages > 100 {
				t.Fatal("no end")
			}
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("pages of %d (-want +got):\n%s", size, diff)
		}
	}
	_, err := leader.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: "invalid-token"})
	want(t, err, codes.Aborted, "start again without one")
	_, err = leader.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: -1})
	want(t, err, codes.InvalidArgument, "max_entries")
}

func TestGetAndValidate(t *testing.T) {
	made(t, "validate")
	t.Cleanup(func() { must(t, remove(t, "validate")) })
	got, err := leader.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "validate"})
	must(t, err)
	if got.Volume.GetCapacityBytes() != 10*mib || got.Status == nil {
		t.Errorf("got %v", got)
	}
	_, err = leader.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "other"})
	want(t, err, codes.NotFound, `volume "other" does not exist`)
	_, err = leader.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{})
	want(t, err, codes.InvalidArgument)

	ask := func(change func(*csi.ValidateVolumeCapabilitiesRequest)) (*csi.ValidateVolumeCapabilitiesResponse, error) {
		r := &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "validate", VolumeCapabilities: request("", "", 0).VolumeCapabilities}
		change(r)
		return leader.ValidateVolumeCapabilities(t.Context(), r)
	}
	type change = func(*csi.ValidateVolumeCapabilitiesRequest)
	confirmed := map[string]struct {
		change change
		says   string // "" means confirmed
	}{
		"what it was made for": {func(*csi.ValidateVolumeCapabilitiesRequest) {}, ""},
		"its own context":      {func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeContext = got.Volume.VolumeContext }, ""},
		"another context":      {func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeContext = map[string]string{"pool": "x"} }, `volume_context["pool"]`},
		"other parameters":     {func(r *csi.ValidateVolumeCapabilitiesRequest) { r.Parameters = map[string]string{"queues": "3"} }, "parameters are"},
		"several writers": {func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, "use ReadWriteOnce"},
		"an xfs that has no room": {func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.VolumeCapabilities[0].AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}}
		}, "needs 314572800"},
	}
	for name, c := range confirmed {
		t.Run(name, func(t *testing.T) {
			r, err := ask(c.change)
			must(t, err)
			if (r.Confirmed != nil) != (c.says == "") || !strings.Contains(r.Message, c.says) {
				t.Errorf("got %v", r)
			}
		})
	}
	_, err = ask(func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeId = "other" })
	want(t, err, codes.NotFound)
	_, err = ask(func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeCapabilities = nil })
	want(t, err, codes.InvalidArgument)
}

func TestGetCapacity(t *testing.T) {
	newNode(t, "cap-1", "cap", 100*mib+5)
	newNode(t, "cap-2", "cap", 50*mib)
	seen(t, "cap-1", "cap", 100*mib)
	seen(t, "cap-2", "cap", 50*mib)
	r, err := leader.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"pool": "cap"}})
	must(t, err)
	if r.AvailableCapacity != 150*mib || r.MaximumVolumeSize.GetValue() != 100*mib {
		t.Errorf("all nodes: %v", r)
	}
	for name, c := range map[string][2]string{"an unknown node": {"cap-3", "cap"}, "an unknown pool": {"cap-1", "tin"}} {
		if got := capacityOf(t, c[0], c[1]); got != 0 {
			t.Errorf("%s has %d bytes", name, got)
		}
	}
	many := request("", "", 0).VolumeCapabilities
	many[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	r, err = leader.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"pool": "cap"}, VolumeCapabilities: many})
	must(t, err)
	if r.AvailableCapacity != 0 {
		t.Errorf("%d bytes for what is not offered", r.AvailableCapacity)
	}
	_, err = leader.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"pol": "cap"}})
	want(t, err, codes.InvalidArgument, `parameters["pol"]`)
}

func TestVolumeHealth(t *testing.T) {
	n := made(t, "sick")
	t.Cleanup(func() { must(t, remove(t, "sick")) })
	get := func() []string {
		t.Helper()
		r, err := leader.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: "sick"})
		must(t, err)
		var list []string
		for _, s := range r.VolumeHealth.GetHealthStatuses() {
			list = append(list, s.Status.String()+" "+s.Reason+" "+s.Message)
		}
		return list
	}
	listed := func() bool {
		t.Helper()
		r, err := leader.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{})
		must(t, err)
		for _, e := range r.Entries {
			if e.VolumeId == "sick" {
				return true
			}
		}
		return false
	}
	if got := get(); got != nil || listed() {
		t.Fatalf("a sound volume has %v", got)
	}
	n.setUblk(func(s *v1alpha1.UblkNodeStatus) { s.Pools[0].FreeBytes = 1 })
	eventually(t, "the full pool to be reported", func() bool { return listed() })
	if diff := cmp.Diff([]string{"DEGRADED PoolFull pool sick of node sick has 1 bytes left"}, get()); diff != "" {
		t.Errorf("full pool (-want +got):\n%s", diff)
	}
	n.setNodeReady(corev1.ConditionUnknown)
	eventually(t, "the node to be reported", func() bool { return len(get()) == 2 })

	_, err := leader.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: "other"})
	want(t, err, codes.NotFound, `volume "other" does not exist`)
	_, err = leader.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{StartingToken: "invalid-token"})
	want(t, err, codes.Aborted)
	_, err = leader.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{MaxEntries: -1})
	want(t, err, codes.InvalidArgument, "max_entries")
	n.setNodeReady(corev1.ConditionTrue)
}
