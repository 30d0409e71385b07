//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Where test pods find their volume.
const (
	mountPath  = "/data"
	devicePath = "/dev/data"
)

// podStarts bounds a pod's start: a busy machine that emulates its nodes takes its time.
const podStarts = 4 * time.Minute

// podIdle returns a pod that sleeps.
func podIdle(namespace, name string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "c", Image: s.image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"sh", "-c", "trap exit TERM; while :; do sleep 1; done"},
			}},
		},
	}
}

// podUsing returns a pod that sleeps with the claim as its volume.
func podUsing(namespace, name, claim string, mode corev1.PersistentVolumeMode) *corev1.Pod {
	pod := podIdle(namespace, name)
	container := &pod.Spec.Containers[0]
	if mode == corev1.PersistentVolumeBlock {
		container.VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: devicePath}}
	} else {
		container.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: mountPath}}
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	return pod
}

// start creates a pod and waits until it runs.
func start(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := s.Create(t.Context(), pod); err != nil {
		t.Fatalf("create pod %s: %v", pod.Name, err)
	}
	running(t, pod)
}

func running(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually(t, podStarts, "pod "+pod.Name+" is Running", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("phase %s, conditions %+v", pod.Status.Phase, pod.Status.Conditions)
		}
		return nil
	})
}

// remove deletes an object and waits until it is gone.
func remove(t *testing.T, obj client.Object) {
	t.Helper()
	if err := client.IgnoreNotFound(s.Delete(t.Context(), obj)); err != nil {
		t.Fatalf("delete %T %s: %v", obj, obj.GetName(), err)
	}
	gone(t, obj)
}

func gone(t *testing.T, obj client.Object) {
	t.Helper()
	eventually(t, 2*time.Minute, fmt.Sprintf("%T %s is gone", obj, obj.GetName()), func(ctx context.Context) error {
		err := s.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("still there, finalizers %v", obj.GetFinalizers())
		}
		return err
	})
}

// run executes a shell script in a pod and returns its standard output, trimmed.
func run(t *testing.T, pod *corev1.Pod, script string) string {
	t.Helper()
	out, err := exec(t.Context(), pod, script)
	if err != nil {
		t.Fatalf("in pod %s: %s: %v\n%s", pod.Name, script, err, out)
	}
	return out
}

func exec(ctx context.Context, pod *corev1.Pod, script string) (string, error) {
	executor, err := executorIn(pod, script, false)
	if err != nil {
		return "", err
	}
	// Two buffers: the streams are copied side by side.
	var out, problem bytes.Buffer
	if err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &problem}); err != nil {
		return strings.TrimSpace(out.String() + problem.String()), err
	}
	return strings.TrimSpace(out.String()), nil
}

// executorIn runs a shell script in the first container of a pod.
func executorIn(pod *corev1.Pod, script string, stdin bool) (remotecommand.Executor, error) {
	cs, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		return nil, err
	}
	req := cs.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: pod.Spec.Containers[0].Name,
			Command:   []string{"sh", "-c", script}, Stdin: stdin, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
	return remotecommand.NewWebSocketExecutor(s.config, "GET", req.URL().String())
}
