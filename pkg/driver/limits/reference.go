package limits

import (
	"fmt"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// meanings say of each key what it limits, and by which kind of value.
var meanings = map[string]struct{ values, does string }{
	"iops":           {number, "requests a second, reads and writes together"},
	"readIOPS":       {number, "reads a second"},
	"writeIOPS":      {number, "writes a second"},
	"bandwidth":      {quantity, "bytes a second, read and written together"},
	"readBandwidth":  {quantity, "bytes read a second"},
	"writeBandwidth": {quantity, "bytes written a second"},
	"burst":          {fmt.Sprintf("a time of whole milliseconds up to `%v`, such as `500ms`", maxBurst), "for how long an idle volume saves up its rates"},
}

var (
	number   = fmt.Sprintf("a whole number from %d on, or `0` for no limit", minRequests)
	quantity = fmt.Sprintf("a quantity from `%dMi` on, such as `100Mi`, or `0` for no limit", minBytes>>20)
)

// Reference describes all limits.
func Reference() []driver.Parameter {
	var list []driver.Parameter
	for _, key := range Keys() {
		unset := "no limit"
		if key == "burst" {
			unset = "`100ms`"
		}
		list = append(list, driver.Parameter{Key: key, Values: meanings[key].values, Unset: unset, Does: meanings[key].does})
	}
	return list
}
