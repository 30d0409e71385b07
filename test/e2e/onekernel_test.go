//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// pairOnOneKernel returns two nodes that report the same boot of a kernel.
func pairOnOneKernel(t *testing.T) [2]string {
	t.Helper()
	first := map[string]string{}
	for _, n := range schedulable(t) {
		boot := n.Status.Kernel.BootID
		if other, ok := first[boot]; ok && boot != "" {
			return [2]string{other, n.Name}
		}
		first[boot] = n.Name
	}
	lacks(t, "two nodes on one kernel, such as kind's")
	return [2]string{}
}

// churnOn has pods with inline volumes come and go on each of the nodes, until the function
// that it returns is called.
func churnOn(t *testing.T, namespace string, nodes []string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, node := range nodes {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				pod := podInline(namespace, fmt.Sprintf("churn-%s-%d", node, i), "ext4", "64Mi")
				pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
				if err := s.Create(ctx, pod); err != nil && ctx.Err() == nil {
					t.Errorf("create pod %s: %v", pod.Name, err)
					return
				}
				// It may be anywhere on its way up when it has to go.
				select {
				case <-time.After(time.Duration(500+rand.N(3000)) * time.Millisecond):
				case <-ctx.Done():
				}
				if err := client.IgnoreNotFound(s.Delete(context.WithoutCancel(ctx), pod)); err != nil {
					t.Errorf("delete pod %s: %v", pod.Name, err)
				}
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// serverLog is what the device server of a node has said since it was started, and, if it
// was started anew in its pod, before that.
func serverLog(t *testing.T, node string) (lines []string) {
	t.Helper()
	cs, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	pod := driverPod(t, "server", node)
	for _, previous := range []bool{true, false} {
		text, err := cs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: "csi-ublk", Previous: previous}).DoRaw(t.Context())
		if err != nil && !previous {
			t.Fatalf("log of %s: %v", pod.Name, err)
		}
		lines = append(lines, strings.Split(string(text), "\n")...)
	}
	return lines
}

// TestNodesOfOneKernel: nodes that are containers of one machine have devices side by
// side, and what happens to one's server does not touch the other's.
func TestNodesOfOneKernel(t *testing.T) {
	nodes := pairOnOneKernel(t)
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
	var pods, helpers [2]*corev1.Pod
	var devices [2]string
	for i, node := range nodes {
		newClaim(t, namespace, "data-"+node, class, "256Mi", corev1.PersistentVolumeFilesystem)
		pods[i] = podUsing(namespace, "writer-"+node, "data-"+node, corev1.PersistentVolumeFilesystem)
		pods[i].Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		pods[i].Spec.Containers[0].Command = []string{"sh", "-c", writer}
		start(t, pods[i])
		helpers[i] = onNode(t, namespace, node)
		devices[i] = deviceOf(t, pods[i], corev1.PersistentVolumeFilesystem)
	}
	if devices[0] == devices[1] {
		t.Fatalf("both nodes' volumes are on %s", devices[0])
	}
	both := func(when string) {
		t.Helper()
		for i, p := range pods {
			advances(t, p, when)
			run(t, helpers[1-i], "test -e /sys/block/"+devices[i]) // each sees the other's
		}
	}
	both("before")
	stop := churnOn(t, namespace, nodes[:])
	for range 3 {
		kill(t, helpers[0], "server")
		both("after one's server was killed, before")
	}
	replacePod(t, "server", nodes[0])
	both("after one's server was replaced, before")
	stop()
	// No word that it would delete, or has lost, a device of the other's volume.
	for i, node := range nodes {
		others := regexp.MustCompile(`"device":` + strings.TrimPrefix(devices[1-i], "ublkb") + `\b`)
		for _, line := range serverLog(t, node) {
			if others.MatchString(line) || strings.Contains(line, "volume lost") {
				t.Errorf("the server of %s on the other node's device %s: %s", node, devices[1-i], line)
			}
		}
	}

	for _, node := range nodes {
		eventually(t, time.Minute, "node "+node+" counts both nodes' devices", func(ctx context.Context) error {
			un := &v1alpha1.UblkNode{}
			err := s.Get(ctx, client.ObjectKey{Name: node}, un)
			if err == nil && un.Status.Slots.Used < 2 {
				err = fmt.Errorf("it counts %d", un.Status.Slots.Used)
			}
			return err
		})
	}
	remove(t, pods[0])
	advances(t, pods[1], "after the other's volume is gone, before")
}
