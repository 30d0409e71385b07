package demo

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func TestStoryHasItsObjects(t *testing.T) {
	for _, name := range []string{"writer", "reader"} {
		doc, err := document("Pod", name)
		if err != nil {
			t.Fatal(err)
		}
		var pod corev1.Pod
		if err := yaml.UnmarshalStrict([]byte(doc), &pod); err != nil {
			t.Errorf("pod %s: %v", name, err)
		}
		if c := pod.Spec.Volumes[0].PersistentVolumeClaim; c == nil || c.ClaimName != "demo" {
			t.Errorf("pod %s does not use the claim", name)
		}
	}
	doc, err := document("PersistentVolumeClaim", "demo")
	if err != nil {
		t.Fatal(err)
	}
	var claim corev1.PersistentVolumeClaim
	if err := yaml.UnmarshalStrict([]byte(doc), &claim); err != nil {
		t.Fatal(err)
	}
	if size := claim.Spec.Resources.Requests[corev1.ResourceStorage]; size.Value() != claimBytes {
		t.Errorf("the claim asks for %s, the device is checked for %d bytes", &size, claimBytes)
	}
	if _, err := document("Pod", "nobody"); err == nil {
		t.Error("an object that is not in the story was found")
	}
}

func TestOneNodeWhereMemoryIsShort(t *testing.T) {
	for mib, want := range map[int]int{0: 2, 1500: 1, 2299: 1, 2300: 2, 24000: 2} {
		if got := nodesFor(mib); got != want {
			t.Errorf("%d MiB: %d nodes, want %d", mib, got, want)
		}
	}
}

func TestWordsKeepQuotedParts(t *testing.T) {
	want := []string{"exec", "p", "--", "sh", "-c", "echo a b"}
	if diff := cmp.Diff(want, words("exec p -- sh -c 'echo a b'")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := strings.Join(words(" get  pods "), "|"); got != "get|pods" {
		t.Errorf("got %q", got)
	}
}
