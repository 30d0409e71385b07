package controller

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// where is a topology requirement in nodes.
type where struct {
	nodes     []string // the volume may be on these; nil means any
	preferred []string // in this order
}

func parseTopology(r *csi.TopologyRequirement) (where, error) {
	nodes, err := nodesOf("accessibility_requirements.requisite", r.GetRequisite())
	if err != nil {
		return where{}, err
	}
	preferred, err := nodesOf("accessibility_requirements.preferred", r.GetPreferred())
	if err != nil {
		return where{}, err
	}
	return where{nodes, preferred}, nil
}

func nodesOf(field string, topologies []*csi.Topology) ([]string, error) {
	var nodes []string
	for i, t := range topologies {
		node, err := nodeOf(fmt.Sprintf("%s[%d]", field, i), t)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// nodeOf is the node of one topology, which must be of our key and no other: a
// segment that nobody here understands can't be promised.
func nodeOf(field string, t *csi.Topology) (string, error) {
	node, ok := t.GetSegments()[driver.TopologyKey]
	if !ok || len(t.GetSegments()) != 1 {
		return "", &driver.InvalidError{Field: field, Problem: fmt.Sprintf("has the segments %v", t.GetSegments()),
			Remedy: "exactly one is understood, " + driver.TopologyKey}
	}
	return node, nil
}

func topologyOf(node string) []*csi.Topology {
	return []*csi.Topology{{Segments: map[string]string{driver.TopologyKey: node}}}
}

func (w where) allows(node string) bool {
	return w.nodes == nil || slices.Contains(w.nodes, node)
}
