package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/limits"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// contextForeign begins the keys that kubelet adds; contextEphemeral is the
	// one by which it asks for an inline volume.
	contextForeign   = "csi.storage.k8s.io/"
	contextEphemeral = contextForeign + "ephemeral"
	contextSize      = "size"
)

const (
	mib                   = 1 << 20
	defaultEphemeralBytes = 1 << 30
)

// ephemeralOptions are the volumeAttributes of an inline volume.
type ephemeralOptions struct {
	deviceOptions
	bytes  int64 // whole MiB
	limits limits.Limits
}

func isEphemeral(c map[string]string) bool { return c[contextEphemeral] == "true" }

// parseEphemeral reads what a pod's author wrote. Unlike the context that
// CreateVolume made, it may hold anything.
func parseEphemeral(c map[string]string) (ephemeralOptions, error) {
	o := ephemeralOptions{bytes: defaultEphemeralBytes}
	known := slices.Concat([]string{contextPool, contextQueueDepth, contextQueues, contextSize}, limits.Keys())
	for _, key := range slices.Sorted(maps.Keys(c)) {
		if !slices.Contains(known, key) && !strings.HasPrefix(key, contextForeign) {
			return o, &driver.InvalidError{Field: attribute(key), Problem: "is not an attribute of this driver's inline volumes", Remedy: "the known ones are " + strings.Join(known, ", ")}
		}
	}
	if text, ok := c[contextSize]; ok {
		q, err := resource.ParseQuantity(text)
		if err != nil || q.Value() <= 0 {
			return o, &driver.InvalidError{Field: attribute(contextSize), Problem: fmt.Sprintf("%q is not a size above 0", text), Remedy: "use one such as 10Gi"}
		}
		o.bytes = (q.Value()-1)/mib*mib + mib
		if o.bytes <= 0 {
			return o, &driver.InvalidError{Field: attribute(contextSize), Problem: fmt.Sprintf("%q is too large", text)}
		}
	}
	if err := limits.Apply(&o.limits, c, attribute); err != nil {
		return o, err
	}
	var err error
	o.deviceOptions, err = parseContext(c, attribute)
	return o, err
}

func attribute(key string) string { return fmt.Sprintf("volumeAttributes[%q]", key) }
