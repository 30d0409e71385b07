package node

import (
	"fmt"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// Reference describes the attributes that inline volumes have beside those of a
// StorageClass.
func Reference() []driver.Parameter {
	return []driver.Parameter{{
		Key: contextSize, Values: "a quantity such as `20Gi`, which is rounded up to whole MiB",
		Unset: fmt.Sprintf("`%dGi`", int64(defaultEphemeralBytes)>>30), Does: "the volume's size",
	}}
}
