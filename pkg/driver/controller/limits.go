package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/limits"
)

// parseLimits reads the limits of a new volume: the mutable parameters, which come from
// its VolumeAttributesClass, win over those of the StorageClass.
func parseLimits(parameters, mutable map[string]string) (v1alpha1.VolumeLimits, error) {
	var l limits.Limits
	if err := limits.Apply(&l, parameters, parameterField); err != nil {
		return v1alpha1.VolumeLimits{}, err
	}
	return modified(v1alpha1.VolumeLimits(l), mutable)
}

// modified is what becomes of limits by mutable parameters, which may be limits only.
// Those that are not given stay.
func modified(has v1alpha1.VolumeLimits, mutable map[string]string) (v1alpha1.VolumeLimits, error) {
	for _, key := range slices.Sorted(maps.Keys(mutable)) {
		if !limits.Known(key) && !strings.HasPrefix(key, paramForeign) {
			return has, &driver.InvalidError{Field: mutableField(key), Problem: "is not a parameter of this driver that can change",
				Remedy: "the known ones are " + strings.Join(limits.Keys(), ", ")}
		}
	}
	l := limits.Limits(has)
	err := limits.Apply(&l, mutable, mutableField)
	return v1alpha1.VolumeLimits(l), err
}

func parameterField(key string) string { return fmt.Sprintf("parameters[%q]", key) }
func mutableField(key string) string   { return fmt.Sprintf("mutable_parameters[%q]", key) }

// specLimits is how limits are written into an object: not at all if there are none.
func specLimits(l v1alpha1.VolumeLimits) *v1alpha1.VolumeLimits {
	if l == (v1alpha1.VolumeLimits{}) {
		return nil
	}
	return &l
}

// limitsOf is what an object says.
func limitsOf(l *v1alpha1.VolumeLimits) v1alpha1.VolumeLimits {
	if l == nil {
		return v1alpha1.VolumeLimits{}
	}
	return *l
}
