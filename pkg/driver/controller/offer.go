package controller

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/capacity"
)

func (s *Service) nodeChanged(n *corev1.Node)           { s.offer(n.Name) }
func (s *Service) ublkNodeChanged(n *v1alpha1.UblkNode) { s.offer(n.Name) }

// offer tells the ledger what the node of this name offers now. It is called for
// a change of the Node, of the UblkNode and of the plugin's pods; the last of several
// calls sees all.
func (s *Service) offer(name string) {
	// One that looked earlier must not have the last word.
	s.offering.Lock()
	defer s.offering.Unlock()
	node, ublk := s.look(name)
	if ublk == nil {
		s.o.Ledger.DeleteNode(name)
		if node == nil && s.plugins != nil {
			s.plugins.forget(name)
		}
		return
	}
	s.o.Ledger.SetNode(offerOf(node, ublk, s.pluginAway(name)))
}

// look returns a node's two objects from memory, nil for what there is not.
func (s *Service) look(name string) (node *corev1.Node, ublk *v1alpha1.UblkNode) {
	ctx, key := context.Background(), client.ObjectKey{Name: name}
	if n := (&corev1.Node{}); s.o.Client.Get(ctx, key, n) == nil {
		node = n
	}
	if u := (&v1alpha1.UblkNode{}); s.o.Client.Get(ctx, key, u) == nil {
		ublk = u
	}
	return node, ublk
}

// silence says why a node can't be expected to act on its volumes now; "" if it
// can. A cordoned node still acts.
func (s *Service) silence(name string) string {
	node, ublk := s.look(name)
	switch {
	case node == nil:
		return "the node does not exist"
	case !ready(node):
		return "it is not ready"
	case ublk == nil:
		return "no csi-ublk node plugin has registered there"
	}
	return cmp.Or(pluginSilence(ublk), s.pluginAway(name))
}

// patience bounds the wait for a node's answer: one that can't be expected to give any
// gets a second, in which it may turn out to have given it. Sidecars have few workers, and
// the calls for a node that is lost would have all of them.
func (s *Service) patience(ctx context.Context, node string) (context.Context, context.CancelFunc) {
	if s.silence(node) == "" {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Second)
}

// pluginAway is plugins.away, "" where pods are not looked at.
func (s *Service) pluginAway(node string) string {
	if s.plugins == nil {
		return ""
	}
	return s.plugins.away(node)
}

// offerOf is what a node offers for new volumes. node is nil if there is none; away
// says that its plugin is gone.
func offerOf(node *corev1.Node, ublk *v1alpha1.UblkNode, away string) capacity.Node {
	n := capacity.Node{Name: ublk.Name, Refusal: cmp.Or(nodeRefusal(node), ublkRefusal(ublk), away)}
	for _, p := range ublk.Status.Pools {
		pool := capacity.Pool{Name: p.Name, CapacityBytes: p.CapacityBytes, ReclaimingBytes: p.ReclaimingBytes, EphemeralBytes: p.EphemeralBytes, StrayBytes: p.StrayBytes}
		if !p.Ready {
			pool.Refusal = because(fmt.Sprintf("its pool %q does not work", p.Name), p.Message)
		}
		n.Pools = append(n.Pools, pool)
	}
	return n
}

// leaving are taints of a node that goes away: a volume placed there would be
// lost with it.
var leaving = map[string]string{
	corev1.TaintNodeOutOfService:     "it is out of service",
	"ToBeDeletedByClusterAutoscaler": "the cluster autoscaler is about to delete it",
	"karpenter.sh/disrupted":         "Karpenter is about to delete it",
}

// nodeRefusal says why a Kubernetes node takes no new volume; "" if it does.
func nodeRefusal(n *corev1.Node) string {
	switch {
	case n == nil:
		return "the node does not exist"
	case n.DeletionTimestamp != nil:
		return "it is being deleted"
	case n.Spec.Unschedulable:
		return "it is cordoned"
	}
	for _, t := range n.Spec.Taints {
		if why, ok := leaving[t.Key]; ok {
			return why
		}
	}
	if !ready(n) {
		return "it is not ready"
	}
	return ""
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// ublkRefusal says why a node's plugin takes no new volume; "" if it does.
func ublkRefusal(n *v1alpha1.UblkNode) string {
	if n.DeletionTimestamp != nil {
		return "its UblkNode is being deleted"
	}
	if why := pluginSilence(n); why != "" {
		return why
	}
	if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeKernelHealthy); c != nil && c.Status == metav1.ConditionFalse {
		return because("its kernel is not healthy", c.Message)
	}
	return ""
}

func pluginSilence(n *v1alpha1.UblkNode) string {
	c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeReady)
	switch {
	case c == nil:
		return "its csi-ublk node plugin has not reported yet"
	case c.Status != metav1.ConditionTrue:
		return because("its csi-ublk node plugin is not ready", c.Message)
	}
	return ""
}

func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + " (" + why + ")"
}
