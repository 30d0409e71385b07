//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// writer is a loop that appends numbered records, each forced to the device, and
// stops at the first error, which it leaves in /data/error.
const writer = `i=0; while :; do i=$((i+1)); printf '%08d\n' $i | dd of=/data/log bs=9 seek=$((i-1)) conv=notrunc,fsync 2>/tmp/e || { cat /tmp/e > /tmp/failed; exit 1; }; echo $i > /tmp/at; done`

// TestDriverRestarts takes each part of the driver away while a pod writes: I/O
// may pause, but no error reaches the pod and no record is lost.
func TestDriverRestarts(t *testing.T) {
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
	newClaim(t, namespace, "data", class, "512Mi", corev1.PersistentVolumeFilesystem)
	pod := podUsing(namespace, "writer", "data", corev1.PersistentVolumeFilesystem)
	pod.Spec.Containers[0].Command = []string{"sh", "-c", writer}
	start(t, pod)
	helper := onNode(t, namespace, pod.Spec.NodeName)

	for _, fault := range []struct {
		name   string
		strike func(t *testing.T)
	}{
		{"the worker is killed", func(t *testing.T) { kill(t, helper, "worker") }},
		{"the server is killed", func(t *testing.T) { kill(t, helper, "server") }},
		{"the server's pod is deleted", func(t *testing.T) { replacePod(t, "server", pod.Spec.NodeName) }},
		{"the node plugin's pod is deleted", func(t *testing.T) { replacePod(t, "node", pod.Spec.NodeName) }},
		{"a controller pod is deleted", func(t *testing.T) { replacePod(t, "controller", "") }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			advances(t, pod, "before")
			fault.strike(t)
			advances(t, pod, "after")
		})
	}
	records := run(t, pod, `n=$(cat /tmp/at); head -c $((n*9)) /data/log | awk '{ if ($1+0 != NR) { print "record " NR " is " $1; exit } } END { print NR }'`)
	if _, err := strconv.Atoi(records); err != nil {
		t.Errorf("the log is broken: %s", records)
	}
}

// advances checks that the writer gets on and has seen no error.
func advances(t *testing.T, pod *corev1.Pod, when string) {
	t.Helper()
	at := run(t, pod, "cat /tmp/at")
	eventually(t, podStarts, "the writer gets on "+when+" the fault", func(ctx context.Context) error {
		out, err := exec(ctx, pod, "if test -e /tmp/failed; then cat /tmp/failed; exit 1; fi; cat /tmp/at")
		if err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		if out == at {
			return fmt.Errorf("still at record %s", at)
		}
		return nil
	})
}

// replacePod deletes a driver pod and waits until another one is ready.
func replacePod(t *testing.T, component, node string) {
	t.Helper()
	old := driverPod(t, component, node)
	if err := s.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	eventually(t, podStarts, component+" is ready again", func(ctx context.Context) error {
		replaced := false
		var pods corev1.PodList
		if err := s.List(ctx, &pods, client.InNamespace(s.namespace), client.MatchingLabels{
			"app.kubernetes.io/name": "csi-ublk", "app.kubernetes.io/component": component}); err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.UID == old.UID {
				return fmt.Errorf("pod %s is still there", p.Name)
			}
			if node != "" && p.Spec.NodeName != node {
				continue
			}
			replaced = true
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
					return fmt.Errorf("pod %s is not ready: %s", p.Name, c.Message)
				}
			}
		}
		if !replaced {
			return fmt.Errorf("no pod yet")
		}
		return nil
	})
}

// kill sends SIGKILL to the node's `csi-ublk ROLE` processes.
func kill(t *testing.T, helper *corev1.Pod, role string) {
	t.Helper()
	run(t, helper, `k=; for p in /proc/[0-9]*; do set -- $(tr '\0' ' ' < $p/cmdline 2>/dev/null); case $1 in */csi-ublk|csi-ublk|/proc/self/exe) [ "$2" = `+role+` ] && kill -9 ${p#/proc/} && k=1;; esac; done; test -n "$k"`)
}
