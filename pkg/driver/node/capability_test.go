package node

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
)

// See the test of that name of the controller service.
func TestWhatIsOffered(t *testing.T) {
	r, err := (&Service{}).NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range r.Capabilities {
		got = append(got, c.GetRpc().GetType().String())
	}
	want := []string{"STAGE_UNSTAGE_VOLUME", "GET_VOLUME_STATS", "GET_VOLUME_HEALTH", "GET_STORAGE_HEALTH", "EXPAND_VOLUME", "SINGLE_NODE_MULTI_WRITER"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
