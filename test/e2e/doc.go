// Package e2e is the end-to-end suite: it takes a kubeconfig of a cluster that
// has the chart installed and talks to nothing but its API. What must be done on
// a node, such as killing a process or looking at /sys, is done in a privileged
// helper pod, so that the same files run against the rig's cluster, a kind
// cluster and a user's.
//
// The tests carry the build tag e2e; make e2e runs them so:
//
//	KUBECONFIG=... go test -tags e2e ./test/e2e
//
// A case that needs something the cluster has not says so and is skipped (see lacks);
// everything else fails. Some cases kill the driver's processes, fill pools, upgrade,
// uninstall and install the release: no volume of others is touched, but this is not
// for a cluster that somebody works in.
//
// E2E_IMAGE names the image of the test pods: any that has a busybox shell.
// E2E_HELM and E2E_CHART name the helm binary and the chart, for the cases that
// upgrade and uninstall the release; E2E_VM and E2E_VM_CLUSTER the rig's program and
// the name of its cluster, for the case that cuts a node's power.
package e2e
