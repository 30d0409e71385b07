//go:build helm

package chart

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Snapshots go by what the cluster serves, unless the values say otherwise; what the
// cluster does not serve is never asked of it.
func TestSnapshotsAreGated(t *testing.T) {
	served := []string{"--api-versions", "snapshot.storage.k8s.io/v1"}
	groups := append([]string{"--api-versions", "groupsnapshot.storage.k8s.io/v1"}, served...)
	for name, c := range map[string]struct {
		args  []string
		on    bool
		group bool
	}{
		"auto, and not served":   {nil, false, false},
		"auto, and served":       {served, true, false},
		"auto, groups as well":   {groups, true, true},
		"off, and served":        {append([]string{"--set", "snapshots.enabled=false"}, groups...), false, false},
		"on, whatever is served": {[]string{"--set", "snapshots.enabled=true"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := helm(t, append([]string{"template", "csi-ublk", chartDir, "--kube-version", kubeVersions[0]}, c.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			class := strings.Contains(text, "kind: VolumeSnapshotClass")
			if group := strings.Contains(text, "kind: VolumeGroupSnapshotClass"); group != c.group {
				t.Errorf("class of groups %v, want %v", group, c.group)
			}
			rights := strings.Contains(text, "volumesnapshotcontents/status")
			sidecar := false
			for _, o := range decode(t, text) {
				sidecar = sidecar || slices.ContainsFunc(podSpec(o).Containers, func(c corev1.Container) bool { return c.Name == "csi-snapshotter" })
			}
			if class != c.on || rights != c.on || sidecar != c.on {
				t.Errorf("class %v, rights %v, sidecar %v; want %v", class, rights, sidecar, c.on)
			}
		})
	}
}
