package kind

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/csi-ublk/csi-ublk/test/vm/image"
)

// config is what is looked at of kind's configuration.
type config struct {
	Nodes []struct {
		Role        string
		ExtraMounts []struct{ HostPath, ContainerPath, Propagation string }
	}
	Networking             map[string]any
	KubeadmConfigPatches   []string
	Kind, APIVersion, Name string
}

// The guest's configuration is the one that everybody uses, with more below it.
func TestTheClustersConfigurationIsWhole(t *testing.T) {
	common, err := os.ReadFile("../../e2e/kind/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	extra, err := files.ReadFile("files/extra.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c config
	if err := yaml.UnmarshalStrict(slices.Concat(common, extra), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Nodes) != 3 || len(c.KubeadmConfigPatches) < 3 || c.Networking["disableDefaultCNI"] != true {
		t.Errorf("%+v", c)
	}
	states := map[string]bool{}
	for _, n := range c.Nodes {
		dev := false
		for _, m := range n.ExtraMounts {
			if m.Propagation != "" && m.Propagation != "None" {
				t.Errorf("%s: what is mounted at %s in a node reaches the host", n.Role, m.ContainerPath)
			}
			dev = dev || m.HostPath == "/dev" && m.ContainerPath == "/dev"
			if m.ContainerPath == "/var/lib/csi-ublk" {
				states[m.HostPath] = true
			}
		}
		if !dev {
			t.Errorf("a %s without the host's /dev", n.Role)
		}
	}
	if len(states) != len(c.Nodes) {
		t.Errorf("%d nodes with the state directories %v: each needs its own", len(c.Nodes), states)
	}
	for _, p := range c.KubeadmConfigPatches {
		if err := yaml.Unmarshal([]byte(p), &map[string]any{}); err != nil {
			t.Errorf("%v in %s", err, p)
		}
	}
}

func TestThePauseImageHasTheNameThatContainerdAsksFor(t *testing.T) {
	node := t.TempDir()
	if err := os.MkdirAll(filepath.Join(node, "etc/containerd"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(node, "etc/containerd/config.toml")
	if err := os.WriteFile(file, []byte("  # x\n  sandbox_image = \"registry.k8s.io/pause:3.10\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	names, err := pauseNames(node)
	if err != nil || len(names) != 1 {
		t.Fatalf("%v, %v", names, err)
	}
	images := image.AddNames([]image.Image{{Names: []string{"a"}}, {Names: []string{image.Pause}}}, image.Pause, names...)
	if got := strings.Join(images[1].Names, " "); got != "registry.k8s.io/pause:3.10 "+image.Pause {
		t.Errorf("names %s", got)
	}
	if err := os.WriteFile(file, []byte("version = 4\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := pauseNames(node); err == nil {
		t.Error("a configuration without the name is taken")
	}
}

func TestTheSnapshotControllerIsOfTheVersionThatIsBuilt(t *testing.T) {
	manifest, err := os.ReadFile("../../e2e/kind/snapshots.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(manifest), "---\n") {
		t.Error("the manifest would go on with the CRD that is put before it")
	}
	module, err := os.ReadFile("../kube/kubernetes/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`external-snapshotter/v8 (v\S+)`).FindSubmatch(module)
	if version == nil || !strings.Contains(string(manifest), "snapshot-controller:"+string(version[1])+"\n") {
		t.Errorf("the nodes have version %q, the manifest names another", version)
	}
}
