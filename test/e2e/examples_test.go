//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/docs/examples"
)

// TestExamples applies the manifests of the documents as they are, each after those that
// it builds upon, and waits until all of them do what they are for.
func TestExamples(t *testing.T) {
	needsGroups(t)
	needsPool(t, "default")
	order := []string{
		"storageclass.yaml", "snapshotclass.yaml", "claim.yaml", "block.yaml", "inline.yaml", "generic-ephemeral.yaml", "limits.yaml",
		"snapshot.yaml", "restore.yaml", "clone.yaml", "group-snapshot.yaml",
	}
	files, err := examples.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(order, f.Name()) {
			t.Errorf("%s is not tried", f.Name())
		}
	}
	idle := census(t)
	namespace := newNamespace(t)
	var all []client.Object
	whole := t // objects outlive the step that makes them
	for _, name := range order {
		t.Run(name, func(t *testing.T) {
			objects := example(t, name)
			for _, o := range objects {
				place(whole, o, namespace)
				if err := s.Create(t.Context(), o); err != nil {
					t.Fatalf("create %s %s: %v", o.GetKind(), o.GetName(), err)
				}
				all = append(all, o)
			}
			for _, o := range objects {
				eventually(t, podStarts, o.GetKind()+" "+o.GetName()+" is what it should be", func(ctx context.Context) error {
					if err := s.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
						return err
					}
					return settled(o)
				})
			}
		})
	}
	for _, o := range slices.Backward(all) {
		remove(t, o)
	}
	eventually(t, 2*time.Minute, "nothing is left of them", func(ctx context.Context) error {
		now, err := countAll(ctx)
		if err == nil && (now.volumes > idle.volumes || now.bytes > idle.bytes) {
			err = fmt.Errorf("%+v, before it was %+v", now, idle)
		}
		return err
	})
}

// example reads the objects of a manifest.
func example(t *testing.T, name string) (list []*unstructured.Unstructured) {
	t.Helper()
	f, err := examples.Files.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for docs := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		o := &unstructured.Unstructured{}
		if err := docs.Decode(&o.Object); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		list = append(list, o)
	}
}

// place puts what has a namespace into one, has what has none go with the test, and
// gives pods the image of test pods.
func place(t *testing.T, o *unstructured.Unstructured, namespace string) {
	t.Helper()
	kind := o.GroupVersionKind()
	mapping, err := s.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		t.Fatal(err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		o.SetNamespace(namespace)
	} else {
		t.Cleanup(func() {
			if err := client.IgnoreNotFound(s.Delete(context.Background(), o)); err != nil {
				t.Errorf("delete %s %s: %v", kind.Kind, o.GetName(), err)
			}
		})
	}
	if kind.Kind != "Pod" {
		return
	}
	containers, _, err := unstructured.NestedSlice(o.Object, "spec", "containers")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers {
		c.(map[string]any)["image"] = s.image
	}
	err = errors.Join(
		unstructured.SetNestedSlice(o.Object, containers, "spec", "containers"),
		unstructured.SetNestedField(o.Object, int64(1), "spec", "terminationGracePeriodSeconds"),
	)
	if err != nil {
		t.Fatal(err)
	}
}

// settled says whether an object has become what it is for; nil is yes.
func settled(o *unstructured.Unstructured) error {
	field := func(path ...string) string {
		text, _, _ := unstructured.NestedString(o.Object, path...)
		return text
	}
	switch o.GetKind() {
	case "Pod":
		if field("status", "phase") != string(corev1.PodRunning) {
			return fmt.Errorf("status %v", o.Object["status"])
		}
	case "PersistentVolumeClaim":
		if field("status", "phase") != string(corev1.ClaimBound) || field("status", "currentVolumeAttributesClassName") != field("spec", "volumeAttributesClassName") {
			return fmt.Errorf("status %v", o.Object["status"])
		}
	case "VolumeSnapshot", "VolumeGroupSnapshot":
		if ready, _, _ := unstructured.NestedBool(o.Object, "status", "readyToUse"); !ready {
			return fmt.Errorf("status %v", o.Object["status"])
		}
	}
	return nil
}
