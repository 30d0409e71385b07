//go:build e2e

package e2e

import (
	"errors"
	"os"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// lacks ends a case that can't be put to this cluster and says for want of what. It
// counts as skipped, which the last line of a run tells, and never as passed. The
// driver itself is no such thing: a cluster without it fails the suite.
func lacks(t *testing.T, what string) {
	t.Helper()
	t.Skip("not applicable, for want of " + what)
}

// needs returns the values of environment variables, or ends the case.
func needs(t *testing.T, what string, names ...string) []string {
	t.Helper()
	var values []string
	for _, name := range names {
		v := os.Getenv(name)
		if v == "" {
			lacks(t, what+": "+name+" is not set")
		}
		values = append(values, v)
	}
	return values
}

// schedulable returns the driver's nodes that take pods without tolerations.
func schedulable(t *testing.T) (found []v1alpha1.UblkNode) {
	t.Helper()
	var all v1alpha1.UblkNodeList
	var nodes corev1.NodeList
	if err := errors.Join(s.List(t.Context(), &all), s.List(t.Context(), &nodes)); err != nil {
		t.Fatal(err)
	}
	for _, u := range all.Items {
		for _, n := range nodes.Items {
			tainted := slices.ContainsFunc(n.Spec.Taints, func(x corev1.Taint) bool { return x.Effect != corev1.TaintEffectPreferNoSchedule })
			if n.Name == u.Name && !tainted && !n.Spec.Unschedulable {
				found = append(found, u)
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("of %d nodes and %d with the driver none takes pods", len(nodes.Items), len(all.Items))
	}
	return found
}

// needsPool ends a case that uses the pool of that name where a node has none, and
// returns the nodes.
func needsPool(t *testing.T, name string) []v1alpha1.UblkNode {
	t.Helper()
	nodes := schedulable(t)
	for _, n := range nodes {
		if !slices.ContainsFunc(n.Status.Pools, func(p v1alpha1.PoolStatus) bool { return p.Name == name }) {
			lacks(t, "a pool "+name+" on node "+n.Name)
		}
	}
	return nodes
}

// needsSnapshots ends a case that takes snapshots where there is no API for them.
func needsSnapshots(t *testing.T) {
	t.Helper()
	class := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass"}}
	err := s.Get(t.Context(), client.ObjectKey{Name: snapshotClass}, class)
	if meta.IsNoMatchError(err) {
		lacks(t, "the snapshot API, the CRDs and controller of external-snapshotter")
	}
	if err != nil {
		t.Fatalf("get the VolumeSnapshotClass, which the chart brings if the API was there before it: %v", err)
	}
}

// needsFeature ends a case that a node's kernel can't do. The name is that of the driver's
// feature, as a UblkNode lists it.
func needsFeature(t *testing.T, name string) {
	t.Helper()
	for _, n := range schedulable(t) {
		if !slices.Contains(n.Status.Kernel.Features, name) {
			lacks(t, "the ublk feature "+name+" of node "+n.Name+"'s kernel, "+n.Status.Kernel.Release)
		}
	}
}

// needsFlag ends a case if the driver's controller runs without the flag.
func needsFlag(t *testing.T, flag string) {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "csi-ublk-controller"}, d); err != nil {
		t.Fatal(err)
	}
	for _, c := range d.Spec.Template.Spec.Containers {
		if slices.Contains(c.Args, flag) {
			return
		}
	}
	lacks(t, "the controller's "+flag)
}

// needsGroups ends a case where the API of group snapshots is not served.
func needsGroups(t *testing.T) {
	t.Helper()
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotClassList"}}
	err := s.List(t.Context(), list)
	if meta.IsNoMatchError(err) {
		lacks(t, "the API groupsnapshot.storage.k8s.io/v1")
	}
	if err != nil {
		t.Fatal(err)
	}
}
