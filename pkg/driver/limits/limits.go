// Package limits reads what users say of a volume's rates: in a VolumeAttributesClass,
// in a StorageClass and in a pod that has an inline volume, by the same keys.
package limits

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Limits are those of UblkVolume's spec.limits, field by field; 0 means none.
type Limits struct {
	IOPS, ReadIOPS, WriteIOPS                int64 // requests a second
	Bandwidth, ReadBandwidth, WriteBandwidth int64 // bytes a second
	BurstMillis                              int32
}

// maxBurst is the longest that a volume may save up its rates.
const maxBurst = time.Minute

// A volume slower than this would take minutes to answer what one unmount waits for, and
// is most likely the mistake of somebody who left out the unit.
const (
	minRequests = 10
	minBytes    = 1 << 20
)

// readers read each key. The limits are those of the UblkVolume schema.
var readers = map[string]func(l *Limits, value string) error{
	"iops":           func(l *Limits, v string) error { return requests(v, &l.IOPS) },
	"readIOPS":       func(l *Limits, v string) error { return requests(v, &l.ReadIOPS) },
	"writeIOPS":      func(l *Limits, v string) error { return requests(v, &l.WriteIOPS) },
	"bandwidth":      func(l *Limits, v string) error { return bytes(v, &l.Bandwidth) },
	"readBandwidth":  func(l *Limits, v string) error { return bytes(v, &l.ReadBandwidth) },
	"writeBandwidth": func(l *Limits, v string) error { return bytes(v, &l.WriteBandwidth) },
	"burst":          func(l *Limits, v string) error { return burst(v, &l.BurstMillis) },
}

// Keys are the names of all limits, sorted.
func Keys() []string { return slices.Sorted(maps.Keys(readers)) }

// Known says whether a key is one of them.
func Known(key string) bool { return readers[key] != nil }

// Apply sets those limits whose keys are in given, and leaves the others; keys that are
// none are the caller's. Nothing is set if there is an error, a *driver.InvalidError
// with the field that name makes of a key.
func Apply(l *Limits, given map[string]string, name func(key string) string) error {
	next := *l
	for _, key := range Keys() { // of two mistakes always the same one is reported
		value, ok := given[key]
		if !ok {
			continue
		}
		if err := readers[key](&next, strings.TrimSpace(value)); err != nil {
			return &driver.InvalidError{Field: name(key), Problem: err.Error()}
		}
	}
	*l = next
	return nil
}

func requests(text string, into *int64) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is not a number of requests a second: use a whole number, or 0 for no limit", text)
	}
	if n > 0 && n < minRequests {
		return fmt.Errorf("%q is too slow for a volume: use %d requests a second or more, or 0 for no limit", text, minRequests)
	}
	*into = n
	return nil
}

func bytes(text string, into *int64) error {
	q, err := resource.ParseQuantity(text)
	n := q.Value() // rounded, and bounded, where the quantity is no such number
	if err != nil || n < 0 || n == math.MaxInt64 || q.CmpInt64(n) != 0 {
		return fmt.Errorf("%q is not a number of bytes a second: use a quantity such as 100Mi, or 0 for no limit", text)
	}
	if n > 0 && n < minBytes {
		return fmt.Errorf("%q is too slow for a volume: use 1Mi a second or more, or 0 for no limit", text)
	}
	*into = n
	return nil
}

func burst(text string, into *int32) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxBurst || d%time.Millisecond != 0 {
		return fmt.Errorf("%q is not a time of whole milliseconds up to %v: use one such as 500ms, or 0s for what is usual", text, maxBurst)
	}
	*into = int32(d / time.Millisecond)
	return nil
}
