package controller

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func pluginPod(uid, node string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

func TestAPluginIsAwayWhenItsGraceIsOver(t *testing.T) {
	const grace = 30 * time.Second
	synctest.Test(t, func(t *testing.T) {
		var changed atomic.Int32 // timers have goroutines of their own
		p := newPlugins(grace, func(string) { changed.Add(1) })
		expect := func(when string, away bool, changes int32) {
			t.Helper()
			synctest.Wait()
			if why := p.away("n"); away != (why != "") {
				t.Errorf("%s: away %q", when, why)
			}
			if n := changed.Load(); n != changes {
				t.Errorf("%s: told of %d changes, want %d", when, n, changes)
			}
		}
		p.seen(pluginPod("a", "n", corev1.ConditionTrue))
		time.Sleep(time.Hour)
		expect("ready", false, 0)

		p.seen(pluginPod("a", "n", corev1.ConditionFalse))
		time.Sleep(grace - time.Second)
		expect("restarting", false, 0)
		p.seen(pluginPod("a", "n", corev1.ConditionTrue))
		time.Sleep(grace)
		expect("restarted", false, 0)

		// An update: the new pod is there before the old one is gone, then alone.
		p.seen(pluginPod("b", "n", corev1.ConditionTrue))
		p.gone(pluginPod("a", "n", corev1.ConditionTrue))
		time.Sleep(grace)
		expect("updated", false, 0)

		lost := time.Now()
		p.seen(pluginPod("b", "n", corev1.ConditionFalse))
		time.Sleep(grace - time.Second)
		p.gone(pluginPod("b", "n", corev1.ConditionFalse)) // does not start the grace anew
		expect("dying", false, 0)
		time.Sleep(time.Second)
		expect("dead", true, 1)
		if why := p.away("n"); !strings.Contains(why, lost.UTC().Format(time.RFC3339)) {
			t.Errorf("%q does not say since when", why)
		}
		p.seen(pluginPod("c", "n", corev1.ConditionTrue))
		expect("back", false, 2)
	})
}

func TestANodeWithoutAPluginsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int32
		p := newPlugins(time.Second, func(string) { changes.Add(1) })
		p.seen(pluginPod("pending", "", corev1.ConditionFalse)) // on no node yet
		if why := p.away("n"); why != "" {
			t.Errorf("away at the first question: %s", why)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if p.away("n") == "" || changes.Load() != 1 {
			t.Errorf("not away after the grace, %d changes", changes.Load())
		}
		p.forget("n")
		if len(p.nodes) != 0 {
			t.Errorf("%d nodes are known after all are gone", len(p.nodes))
		}
	})
}
