package server

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// An observation is what a server finds when it starts.
type observation struct {
	tag     uint64
	entries []*entry
	devices []ublk.DeviceInfo
	silent  []uint32 // devices that did not answer
}

// verb is what to do about one volume or device that was found.
type verb string

const (
	// doRecover: a user has the device; give it a worker again.
	doRecover verb = "recover"
	// doDelete: nobody was given the device, or it was given back: stop and
	// delete it, then drop the entry.
	doDelete verb = "delete"
	// doDrop: there is no device any more; drop the entry.
	doDrop verb = "drop"
	// doReport: what is right can't be known; touch nothing.
	doReport verb = "report"
)

// A step is one verb, and why.
type step struct {
	verb   verb
	entry  *entry           // nil for a device without one
	device *ublk.DeviceInfo // nil for an entry without one
	reason string
}

// plan decides what becomes of everything found. It is pure. Devices with
// another tag get no step at all.
func plan(o observation) []step {
	ours := make(map[uint32]*ublk.DeviceInfo)
	for i, d := range o.devices {
		if d.Owner == o.tag {
			ours[d.ID] = &o.devices[i]
		}
	}
	claims := make(map[uint32][]*entry)
	var steps []step
	for _, e := range o.entries {
		switch {
		case slices.Contains(o.silent, e.Device):
			steps = append(steps, step{doReport, e, &ublk.DeviceInfo{ID: e.Device}, "the kernel did not answer about the device; start the server again when it does"})
		case ours[e.Device] == nil:
			steps = append(steps, step{doDrop, e, nil, "the kernel has no such device of ours"})
		default:
			claims[e.Device] = append(claims[e.Device], e)
		}
	}
	for id, d := range ours {
		steps = append(steps, planDevice(d, claims[id])...)
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.name(), b.name()) })
	return steps
}

// planDevice decides about one device of ours and the entries that name it.
func planDevice(d *ublk.DeviceInfo, claims []*entry) []step {
	switch {
	case len(claims) == 0:
		return []step{{doDelete, nil, d, "no journal entry names it: nobody was given it, or it was given back"}}
	case len(claims) == 1 && d.State == ublk.StateDead:
		return []step{{doDelete, claims[0], d, "the device was stopped"}}
	case len(claims) == 1:
		return []step{{doRecover, claims[0], d, "a user has the volume"}}
	}
	var steps []step
	for _, e := range claims {
		// Serving the wrong file would destroy it.
		steps = append(steps, step{doReport, e, d, "more than one volume claims the device"})
	}
	return steps
}

func (s step) name() string {
	if s.entry != nil {
		return s.entry.Volume
	}
	return fmt.Sprintf("~%d", s.device.ID)
}
