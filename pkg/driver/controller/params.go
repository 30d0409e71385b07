package controller

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/limits"
)

// StorageClass parameters, and the keys of a volume's context.
const (
	paramPool       = "pool"
	paramQueues     = "queues"
	paramQueueDepth = "queueDepth"
	// paramForeign begins the keys that the sidecars add for themselves.
	paramForeign = "csi.storage.k8s.io/"
)

// The limits are those of the UblkVolume schema.
const (
	maxQueues     = 32
	maxQueueDepth = 1024
)

// params are the parameters of a StorageClass.
type params struct {
	pool       string
	queues     int32
	queueDepth int32
}

var poolName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// known are the parameters and how each is read.
var known = map[string]func(*params, string) error{
	paramPool: func(p *params, v string) error {
		if !poolName.MatchString(v) {
			return fmt.Errorf("%q is not a pool's name: use at most 32 of a-z, 0-9 and -", v)
		}
		p.pool = v
		return nil
	},
	paramQueues:     func(p *params, v string) error { return number(v, 1, maxQueues, &p.queues) },
	paramQueueDepth: func(p *params, v string) error { return number(v, 1, maxQueueDepth, &p.queueDepth) },
}

// parseParams reads the parameters of a StorageClass; each may be left out.
func parseParams(given map[string]string) (params, error) {
	p := params{pool: "default", queues: 1, queueDepth: 64}
	// In order, so that of two mistakes always the same one is reported.
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if strings.HasPrefix(key, paramForeign) {
			continue
		}
		if limits.Known(key) {
			continue
		}
		set, ok := known[key]
		if !ok {
			return params{}, &driver.InvalidError{Field: parameterField(key), Problem: "is not a parameter of this driver",
				Remedy: "the known ones are " + strings.Join(slices.Concat(slices.Sorted(maps.Keys(known)), limits.Keys()), ", ")}
		}
		if err := set(&p, given[key]); err != nil {
			return params{}, &driver.InvalidError{Field: parameterField(key), Problem: err.Error()}
		}
	}
	// They are no part of p: they may change, and nobody has to ask for the same.
	_, err := parseLimits(given, nil)
	return p, err
}

func number(text string, least, most int64, into *int32) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is not a number from %d to %d", text, least, most)
	}
	*into = int32(n)
	return nil
}

// context is what a volume's node needs to know of them without asking the API
// server.
func (p params) context() map[string]string {
	return map[string]string{
		paramPool:       p.pool,
		paramQueues:     strconv.Itoa(int(p.queues)),
		paramQueueDepth: strconv.Itoa(int(p.queueDepth)),
	}
}
