//go:build e2e

package e2e

import (
	"os"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
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

// needsPool ends a case that uses the pool of that name where a node has none.
func needsPool(t *testing.T, name string) []v1alpha1.UblkNode {
	t.Helper()
	var nodes v1alpha1.UblkNodeList
	if err := s.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	if len(nodes.Items) == 0 {
		t.Fatal("no UblkNode: no node plugin has registered")
	}
	for _, n := range nodes.Items {
		if !slices.ContainsFunc(n.Status.Pools, func(p v1alpha1.PoolStatus) bool { return p.Name == name }) {
			lacks(t, "a pool "+name+" on node "+n.Name)
		}
	}
	return nodes.Items
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
