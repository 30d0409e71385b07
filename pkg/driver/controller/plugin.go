package controller

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// plugins knows of every node since when no pod of the node plugin is ready there. A
// plugin that is killed for good can't say so itself; the kubelet does, in its pod.
//
// A plugin that is away for less than grace, as in an update, is not held against the
// node. What was never ready counts from when it was first asked for.
type plugins struct {
	grace   time.Duration
	changed func(node string) // called when away answers otherwise than before

	mu    sync.Mutex
	nodes map[string]*pluginState
}

type pluginState struct {
	ready map[types.UID]bool // its pods; in an update there may be two
	lost  time.Time          // since when none is ready; zero if one is
	due   *time.Timer        // runs from lost for grace
}

func newPlugins(grace time.Duration, changed func(node string)) *plugins {
	return &plugins{grace: grace, changed: changed, nodes: make(map[string]*pluginState)}
}

func (p *plugins) seen(pod *corev1.Pod) {
	if pod.Spec.NodeName != "" {
		p.note(pod.Spec.NodeName, func(ready map[types.UID]bool) { ready[pod.UID] = podReady(pod) })
	}
}

func (p *plugins) gone(pod *corev1.Pod) {
	if pod.Spec.NodeName != "" {
		p.note(pod.Spec.NodeName, func(ready map[types.UID]bool) { delete(ready, pod.UID) })
	}
}

func (p *plugins) note(node string, change func(ready map[types.UID]bool)) {
	p.mu.Lock()
	s := p.state(node)
	change(s.ready)
	back := p.weigh(node, s)
	p.mu.Unlock()
	if back {
		p.changed(node)
	}
}

// forget drops what is known of a node that does not exist.
func (p *plugins) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Pods may outlive their Node for a moment; then it is not known to be over.
	if s := p.nodes[node]; s != nil && len(s.ready) == 0 {
		s.due.Stop()
		delete(p.nodes, node)
	}
}

// away says since when the plugin of a node is missing; "" if it is there, or was a
// moment ago.
func (p *plugins) away(node string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.state(node)
	p.weigh(node, s)
	if !p.over(s) {
		return ""
	}
	return fmt.Sprintf("no pod of its csi-ublk node plugin is ready since %s", s.lost.UTC().Format(time.RFC3339))
}

// state returns what is known of a node, with p.mu held.
func (p *plugins) state(node string) *pluginState {
	s := p.nodes[node]
	if s == nil {
		s = &pluginState{ready: make(map[types.UID]bool)}
		p.nodes[node] = s
	}
	return s
}

// over says whether the grace of a node without a plugin is over.
func (p *plugins) over(s *pluginState) bool { return !s.lost.IsZero() && time.Since(s.lost) >= p.grace }

// weigh brings lost up to date and says whether a plugin that was away is back, with
// p.mu held.
func (p *plugins) weigh(node string, s *pluginState) (back bool) {
	ready := false
	for _, r := range s.ready {
		ready = ready || r
	}
	switch {
	case ready && !s.lost.IsZero():
		back = p.over(s)
		s.due.Stop()
		s.lost = time.Time{}
		return back
	case !ready && s.lost.IsZero():
		s.lost = time.Now()
		s.due = time.AfterFunc(p.grace, func() { p.changed(node) })
	}
	return false
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
