package controller

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// wanted is a CreateVolume request that passed all checks.
type wanted struct {
	name  string
	id    string
	bytes int64 // 0 until the source is known, if there is one
	size  *csi.CapacityRange
	least int64 // for what it is to hold
	// source is what it is to be a copy of; nil is nothing.
	source *v1alpha1.VolumeSource
	claim  types.NamespacedName // the name is empty if it isn't known
	params
	where
	limits v1alpha1.VolumeLimits
}

// parseCreate checks a CreateVolume request, all of it before any effect.
func parseCreate(r *csi.CreateVolumeRequest) (wanted, error) {
	if err := checkName("name", r.GetName()); err != nil {
		return wanted{}, err
	}
	least, err := checkCapabilities(r.GetVolumeCapabilities())
	if err != nil {
		return wanted{}, err
	}
	source, err := parseSource(r.GetVolumeContentSource())
	if err != nil {
		return wanted{}, err
	}
	p, err := parseParams(r.GetParameters())
	if err != nil {
		return wanted{}, err
	}
	l, err := parseLimits(r.GetParameters(), r.GetMutableParameters())
	if err != nil {
		return wanted{}, err
	}
	w, err := parseTopology(r.GetAccessibilityRequirements())
	if err != nil {
		return wanted{}, err
	}
	bytes, err := volumeBytes(r.GetCapacityRange(), least)
	if err != nil {
		return wanted{}, err
	}
	if source != nil {
		bytes = 0
	}
	return wanted{
		name: r.GetName(), id: driver.VolumeID(r.GetName()), bytes: bytes, size: r.GetCapacityRange(),
		least: least, source: source, claim: claimOf(r.GetParameters()), params: p, where: w, limits: l,
	}, nil
}

// checkName holds a name to the CSI spec: 128 bytes of Unicode, no control
// characters but TAB, LF and CR.
func checkName(field, name string) error {
	switch {
	case name == "":
		return &driver.InvalidError{Field: field, Problem: "is empty"}
	case len(name) > 128:
		return &driver.InvalidError{Field: field, Problem: fmt.Sprintf("has %d bytes", len(name)), Remedy: "128 are allowed"}
	case !utf8.ValidString(name):
		return &driver.InvalidError{Field: field, Problem: "is not UTF-8"}
	case strings.ContainsFunc(name, control):
		return &driver.InvalidError{Field: field, Problem: fmt.Sprintf("%q has a control character", name)}
	}
	return nil
}

func control(r rune) bool {
	return (r < 0x20 && r != '\t' && r != '\n' && r != '\r') || (r >= 0x7f && r < 0xa0)
}
