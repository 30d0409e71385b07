package controller

import (
	"fmt"
	"maps"
	"slices"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// meanings say of each parameter which values it takes, and what it does.
var meanings = map[string]struct{ values, does string }{
	paramPool:       {"the name of a pool of the chart's value `pools`", "where the volume's file is"},
	paramQueues:     {fmt.Sprintf("1 to %d", maxQueues), "hardware queues of the volume's device"},
	paramQueueDepth: {fmt.Sprintf("1 to %d", maxQueueDepth), "requests in flight for each queue"},
}

// Reference describes the parameters of a StorageClass that the driver itself reads,
// without the limits of package limits.
func Reference() []driver.Parameter {
	unset, err := parseParams(nil)
	if err != nil {
		panic(err) // pinned by a test
	}
	var list []driver.Parameter
	for _, key := range slices.Sorted(maps.Keys(known)) {
		list = append(list, driver.Parameter{Key: key, Values: meanings[key].values, Unset: "`" + unset.context()[key] + "`", Does: meanings[key].does})
	}
	return list
}
