// Package onnode has limits in the form in which a node keeps them: beside a volume's
// file, and in the device server.
package onnode

import (
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/driver/limits"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// Of is what an object, or a pod, says. Without a rate there is nothing to save up,
// whatever the burst.
func Of(l limits.Limits) pool.Limits {
	rates := pool.Limits{
		IOPS: uint64(l.IOPS), ReadIOPS: uint64(l.ReadIOPS), WriteIOPS: uint64(l.WriteIOPS),
		Bytes: uint64(l.Bandwidth), ReadBytes: uint64(l.ReadBandwidth), WriteBytes: uint64(l.WriteBandwidth),
	}
	if rates != (pool.Limits{}) {
		rates.Burst = time.Duration(l.BurstMillis) * time.Millisecond
	}
	return rates
}
