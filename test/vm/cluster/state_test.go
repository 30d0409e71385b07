package cluster

import (
	"os"
	"strings"
	"testing"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

func TestSpecNamesAreFitForDevicesAndPaths(t *testing.T) {
	for name, good := range map[string]bool{
		"demo": true, "a": true, "ci-2": true, strings.Repeat("x", 20): true,
		"": false, "Demo": false, "-a": false, "a-": false, "a/b": false, "..": false, strings.Repeat("x", 21): false,
	} {
		if err := (Spec{Name: name, Nodes: 1}).validate(); (err == nil) != good {
			t.Errorf("name %q: %v", name, err)
		}
	}
	for nodes, good := range map[int]bool{1: true, 64: true, 0: false, -1: false, 65: false} {
		if err := (Spec{Name: "x", Nodes: nodes}).validate(); (err == nil) != good {
			t.Errorf("%d nodes: %v", nodes, err)
		}
	}
}

func TestAClusterHasOneOwner(t *testing.T) {
	h := &host.Host{Cache: t.TempDir()}
	if pid := owner(h, "x"); pid != 0 {
		t.Errorf("owner of a cluster that never was: %d", pid)
	}
	unlock, err := own(t.Context(), h, "x")
	if err != nil {
		t.Fatal(err)
	}
	if pid := owner(h, "x"); pid != os.Getpid() {
		t.Errorf("owner %d, want this process, %d", pid, os.Getpid())
	}
	if _, err := own(t.Context(), h, "x"); err == nil || !strings.Contains(err.Error(), "already up") {
		t.Errorf("second owner: %v", err)
	}
	if other, err := own(t.Context(), h, "y"); err != nil {
		t.Errorf("a cluster of another name: %v", err)
	} else {
		other()
	}
	unlock()
	if pid := owner(h, "x"); pid != 0 {
		t.Errorf("owner after the end: %d", pid)
	}
}

func TestNodeFilesAreFilledIn(t *testing.T) {
	dir := t.TempDir()
	if err := writeNodeFiles(dir, 2); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"containerd.toml":    "sandbox = 'registry.k8s.io/pause:",
		"kube-proxy.yaml":    "clusterCIDR: 10.244.0.0/16",
		"node1.kubelet.yaml": "tlsCertFile: /host/pki/node1.crt",
		"node2.kubelet.yaml": "tlsPrivateKeyFile: /host/pki/node2.key",
		"boot.sh":            "service kubelet",
	} {
		text, err := os.ReadFile(dir + "/" + file)
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(text), want) || strings.Contains(string(text), "{{") {
			t.Errorf("%s lacks %q or has a value that is not filled in:\n%s", file, want, text)
		}
	}
}

func TestKubectlKeepsItsFlagsAndGivesUpTheClustersName(t *testing.T) {
	for _, tc := range []struct{ args, name, rest string }{
		{"get pods -n x --name y", "demo", "get pods -n x --name y"},
		{"--name ci get pods", "ci", "get pods"},
		{"--name=ci --quiet -n x get pods", "ci", "-n x get pods"},
		{"", "demo", ""},
	} {
		c := &commands{name: "demo"}
		if rest := strings.Join(c.takeName(strings.Fields(tc.args)), " "); rest != tc.rest || c.name != tc.name {
			t.Errorf("%q: name %q, rest %q", tc.args, c.name, rest)
		}
	}
}
