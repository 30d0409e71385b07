//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// churnPods is how many pods start and end at once; E2E_CHURN says another number.
func churnPods(t *testing.T) int {
	text := os.Getenv("E2E_CHURN")
	if text == "" {
		return 10
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("E2E_CHURN=%s: must be a number of pods", text)
	}
	return n
}

// TestChurn: many pods with new volumes start at once and end at once; how long it
// took is logged, and nothing is left. E2E_CHURN_REPORT is a file to which it is added
// as rows of a table, too.
func TestChurn(t *testing.T) {
	n := churnPods(t)
	for name, pods := range map[string]func(namespace, class string, i int) *corev1.Pod{
		"claims": func(namespace, class string, i int) *corev1.Pod {
			claim := fmt.Sprintf("claim-%d", i)
			newClaim(t, namespace, claim, class, "64Mi", corev1.PersistentVolumeFilesystem)
			return podUsing(namespace, fmt.Sprintf("pod-%d", i), claim, corev1.PersistentVolumeFilesystem)
		},
		"inline": func(namespace, _ string, i int) *corev1.Pod {
			return podInline(namespace, fmt.Sprintf("pod-%d", i), "ext4", "64Mi")
		},
	} {
		t.Run(name, func(t *testing.T) {
			idle := census(t)
			namespace := newNamespace(t)
			class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
			observer := podIdle(newNamespace(t), "observer")
			start(t, observer)
			callsBefore := callsSoFar(t, observer)
			began := time.Now()
			list := make([]*corev1.Pod, n)
			for i := range list {
				list[i] = pods(namespace, class, i)
				if err := s.Create(t.Context(), list[i]); err != nil {
					t.Fatal(err)
				}
			}
			started := times(t, namespace, n, began, func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodRunning })
			ended := time.Now()
			for _, p := range list {
				if err := s.Delete(t.Context(), p); err != nil {
					t.Error(err)
				}
			}
			gone := times(t, namespace, n, ended, func(p *corev1.Pod) bool { return p == nil })
			if err := s.DeleteAllOf(t.Context(), &corev1.PersistentVolumeClaim{}, client.InNamespace(namespace)); err != nil {
				t.Error(err)
			}
			eventually(t, 5*time.Minute, "nothing is left of them", func(ctx context.Context) error {
				now, err := countAll(ctx)
				if err == nil && (now.volumes > idle.volumes || now.bytes > idle.bytes) {
					err = fmt.Errorf("%+v, before it was %+v", now, idle)
				}
				return err
			})
			r := churn{name, n, started, gone, callsSince(callsBefore, callsSoFar(t, observer))}
			t.Log(r)
			if file := os.Getenv("E2E_CHURN_REPORT"); file != "" {
				r.write(t, file)
			}
		})
	}
}

// A churn is what a wave of pods has taken.
type churn struct {
	volumes       string
	pods          int
	started, gone []time.Duration // of each pod, sorted
	calls         map[string]calls
}

// churnCalls are the driver's calls on a volume's way, in their order.
var churnCalls = []string{
	"CreateVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "DeleteVolume",
}

func (c churn) String() string {
	return fmt.Sprintf("%d pods, %s: running after p50 %v, p99 %v; gone after p50 %v, p99 %v; calls %v", c.pods, c.volumes,
		quantile(c.started, .5), quantile(c.started, .99), quantile(c.gone, .5), quantile(c.gone, .99), c.row())
}

// row is a row of a table in Markdown.
func (c churn) row() string {
	cells := []string{c.volumes, strconv.Itoa(c.pods)}
	for _, of := range [][]time.Duration{c.started, c.gone} {
		cells = append(cells, fmt.Sprintf("%v / %v", quantile(of, .5), quantile(of, .99)))
	}
	for _, method := range churnCalls {
		mean := "-"
		if done := c.calls[method]; done.count > 0 {
			mean = done.mean().String()
		}
		cells = append(cells, mean)
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

func (c churn) write(t *testing.T, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if at, err := f.Seek(0, io.SeekEnd); err == nil && at == 0 {
		head := append([]string{"volumes", "pods", "running after", "gone after"}, churnCalls...)
		fmt.Fprintf(f, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat(" --- |", len(head)))
	}
	if _, err := fmt.Fprintln(f, c.row()); err != nil {
		t.Fatal(err)
	}
}

// A count is what there is in the cluster, the volumes of others included: UblkVolumes,
// and bytes of inline volumes and of files that are being deleted.
type count struct{ volumes, bytes int64 }

func census(t *testing.T) count {
	t.Helper()
	c, err := countAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func countAll(ctx context.Context) (c count, err error) {
	var volumes v1alpha1.UblkVolumeList
	var nodes v1alpha1.UblkNodeList
	if err := errors.Join(s.List(ctx, &volumes), s.List(ctx, &nodes)); err != nil {
		return c, err
	}
	c.volumes = int64(len(volumes.Items))
	for _, u := range nodes.Items {
		for _, p := range u.Status.Pools {
			c.bytes += p.EphemeralBytes + p.ReclaimingBytes
		}
	}
	return c, nil
}

// times waits until all of the pods pod-0 and on are as is says, and returns how
// long each took, sorted. A pod that does not exist is nil.
func times(t *testing.T, namespace string, n int, since time.Time, is func(*corev1.Pod) bool) []time.Duration {
	t.Helper()
	took := make(map[string]time.Duration, n)
	eventually(t, 10*time.Minute, fmt.Sprintf("all of %d pods", n), func(ctx context.Context) error {
		var list corev1.PodList
		if err := s.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		found := make(map[string]*corev1.Pod, n)
		for i := range list.Items {
			found[list.Items[i].Name] = &list.Items[i]
		}
		for i := range n {
			name := fmt.Sprintf("pod-%d", i)
			if _, done := took[name]; !done && is(found[name]) {
				took[name] = time.Since(since).Round(100 * time.Millisecond)
			}
		}
		if len(took) < n {
			return fmt.Errorf("%d of them", len(took))
		}
		return nil
	})
	return slices.Sorted(maps.Values(took))
}

// quantile of sorted values.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
