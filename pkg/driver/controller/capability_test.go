package controller

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
)

// The suites that judge the driver leave out what it does not offer: a capability that is
// lost here would go unnoticed there.
func TestWhatIsOffered(t *testing.T) {
	s := &Service{}
	r, err := s.ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range r.Capabilities {
		got = append(got, c.GetRpc().GetType().String())
	}
	want := []string{
		"CREATE_DELETE_VOLUME", "LIST_VOLUMES", "GET_CAPACITY", "GET_VOLUME", "GET_VOLUME_HEALTH", "LIST_VOLUME_HEALTH",
		"CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS", "GET_SNAPSHOT", "CLONE_VOLUME", "EXPAND_VOLUME", "MODIFY_VOLUME",
		"SINGLE_NODE_MULTI_WRITER",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	group, err := s.GroupControllerGetCapabilities(t.Context(), &csi.GroupControllerGetCapabilitiesRequest{})
	if err != nil || len(group.Capabilities) != 1 {
		t.Errorf("of groups: %v, %v", group, err)
	}
}
