//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// calls is how many CSI calls of a method succeeded, and how long they took together.
type calls struct {
	count int
	took  time.Duration
}

// mean is 0 if there was none.
func (c calls) mean() time.Duration {
	return (c.took / time.Duration(max(1, c.count))).Round(100 * time.Microsecond)
}

// callsSoFar adds up what the driver's pods, all of them, say of their calls, by method.
// from is a pod that can reach them.
func callsSoFar(t *testing.T, from *corev1.Pod) map[string]calls {
	t.Helper()
	var pods corev1.PodList
	if err := s.List(t.Context(), &pods, client.InNamespace(s.namespace), client.MatchingLabels{"app.kubernetes.io/name": "csi-ublk"}); err != nil {
		t.Fatal(err)
	}
	sum := map[string]calls{}
	for _, p := range pods.Items {
		port := map[string]int{"controller": 9808, "node": 9809}[p.Labels["app.kubernetes.io/component"]]
		if port == 0 || p.Status.PodIP == "" {
			continue
		}
		text := run(t, from, fmt.Sprintf("wget -qO- http://%s:%d/metrics", p.Status.PodIP, port))
		for line := range strings.Lines(text) {
			if err := addCalls(sum, strings.TrimSpace(line)); err != nil {
				t.Fatalf("metrics of pod %s: %v", p.Name, err)
			}
		}
	}
	return sum
}

// addCalls takes a line such as name_sum{code="OK",method="CreateVolume"} 1.5; others are
// skipped.
func addCalls(sum map[string]calls, line string) error {
	const name = "csi_ublk_rpc_duration_seconds_"
	if !strings.HasPrefix(line, name) || !strings.Contains(line, `code="OK"`) {
		return nil
	}
	_, rest, _ := strings.Cut(line, `method="`)
	method, _, _ := strings.Cut(rest, `"`)
	value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
	if err != nil {
		return err
	}
	c := sum[method]
	switch {
	case strings.HasPrefix(line, name+"sum"):
		c.took += time.Duration(value * float64(time.Second))
	case strings.HasPrefix(line, name+"count"):
		c.count += int(value)
	}
	sum[method] = c
	return nil
}

// callsSince is what came after before.
func callsSince(before, now map[string]calls) map[string]calls {
	d := map[string]calls{}
	for _, method := range slices.Sorted(maps.Keys(now)) {
		if c := (calls{now[method].count - before[method].count, now[method].took - before[method].took}); c.count > 0 {
			d[method] = c
		}
	}
	return d
}
