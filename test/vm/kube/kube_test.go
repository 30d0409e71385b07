package kube

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A set whose go.mod does not name a program's package as a tool would lose its dependencies at the next go mod tidy; a tool
// that no set builds would be dead weight.
func TestToolsOfGoModAreTheProgramsOfTheSet(t *testing.T) {
	for _, s := range Sets {
		t.Run(s.Name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(s.Name, "go.mod"))
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]bool{}
			for _, p := range s.Programs {
				want[p] = true
			}
			block := regexp.MustCompile(`(?ms)^tool \(\n(.*?)^\)|^tool (\S+)$`).FindStringSubmatch(string(text))
			if block == nil {
				t.Fatal("no tool directive")
			}
			for _, tool := range strings.Fields(block[1] + block[2]) {
				if !want[tool] {
					t.Errorf("tool %s is no program of the set", tool)
				}
				delete(want, tool)
			}
			for p := range want {
				t.Errorf("program %s is no tool of go.mod", p)
			}
			if !strings.Contains(string(text), s.Module+" v") {
				t.Errorf("go.mod does not require %s", s.Module)
			}
		})
	}
}

func TestKubernetesLearnsItsVersion(t *testing.T) {
	got := strings.Join(flags("v1.37.2"), " ")
	for _, want := range []string{"version.gitVersion=v1.37.2", "version.gitMajor=1", "version.gitMinor=37"} {
		if !strings.Contains(got, want) {
			t.Errorf("flags %q lack %q", got, want)
		}
	}
}

func TestKubeadmIsOfTheClustersVersion(t *testing.T) {
	version := func(s Set) string {
		text, err := os.ReadFile(filepath.Join(s.Name, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		return string(regexp.MustCompile(`k8s.io/kubernetes v\S+`).Find(text))
	}
	if k, a := version(Kubernetes), version(Kubeadm); k != a || k == "" {
		t.Errorf("kubeadm sets up a cluster of %s, by %s", k, a)
	}
}
