package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/health"
)

// ControllerGetVolumeHealth says what is wrong with a volume, from memory.
func (s *Service) ControllerGetVolumeHealth(_ context.Context, r *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	v, err := s.existing(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	node, ublk := s.look(v.Spec.Node)
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: health.Volume(v.Name, problemsOf(v, node, ublk))}, nil
}

// ControllerListVolumeHealth lists, from memory and in the order of ids, the volumes that
// something is wrong with.
func (s *Service) ControllerListVolumeHealth(_ context.Context, r *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	limit := int(r.GetMaxEntries())
	if limit < 0 {
		return nil, &driver.InvalidError{Field: "max_entries", Problem: "is negative", Remedy: "0 means all"}
	}
	after, err := parseToken(r.GetStartingToken())
	if err != nil {
		return nil, err
	}
	volumes, _, err := s.page(after, 0)
	if err != nil {
		return nil, err
	}
	type objects struct {
		node *corev1.Node
		ublk *v1alpha1.UblkNode
	}
	nodes := make(map[string]objects) // each is looked at once
	resp := &csi.ControllerListVolumeHealthResponse{}
	for _, v := range volumes {
		of, ok := nodes[v.Spec.Node]
		if !ok {
			of.node, of.ublk = s.look(v.Spec.Node)
			nodes[v.Spec.Node] = of
		}
		problems := problemsOf(v, of.node, of.ublk)
		if problems == nil {
			continue
		}
		if limit > 0 && len(resp.Entries) == limit {
			resp.NextToken = tokenPrefix + resp.Entries[limit-1].VolumeId
			break
		}
		resp.Entries = append(resp.Entries, health.Volume(v.Name, problems))
	}
	return resp, nil
}

// problemsOf is what the objects say of a volume: its own, and those of its node, nil for
// what there is not. It is pure. A volume that was not made yet has nothing that could be
// wrong.
func problemsOf(v *v1alpha1.UblkVolume, node *corev1.Node, ublk *v1alpha1.UblkNode) []health.Problem {
	var list []health.Problem
	add := func(r health.Reason, message string) {
		list = append(list, health.Problem{Reason: r, Message: message})
	}
	if !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.VolumeCreated) {
		return nil
	}
	for _, kind := range []string{v1alpha1.VolumeReady, v1alpha1.VolumeHealthy} {
		c := meta.FindStatusCondition(v.Status.Conditions, kind)
		if c != nil && c.Status == metav1.ConditionFalse && health.Known(health.Reason(c.Reason)) {
			add(health.Reason(c.Reason), c.Message)
		}
	}
	switch {
	case node == nil:
		add(health.NodeGone, fmt.Sprintf("node %s, which held the volume, no longer exists", v.Spec.Node))
		return list
	case !ready(node):
		add(health.NodeNotReady, fmt.Sprintf("node %s, which holds the volume, is not ready", v.Spec.Node))
	}
	if ublk == nil {
		return list
	}
	if c := meta.FindStatusCondition(ublk.Status.Conditions, v1alpha1.NodeReady); c != nil && c.Reason == string(health.ServerUnavailable) {
		add(health.ServerUnavailable, c.Message)
	}
	for _, p := range ublk.Status.Pools {
		if p.Name == v.Spec.Pool && p.Ready && health.Full(p.FreeBytes) {
			add(health.PoolFull, fmt.Sprintf("pool %s of node %s has %d bytes left", p.Name, v.Spec.Node, p.FreeBytes))
		}
	}
	return list
}
