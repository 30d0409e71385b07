package client

import (
	"context"
	"time"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

// Limits bound a volume's rates; 0 means that there is no such limit. A request counts
// against every limit of its direction and against those of both. Only reads and writes
// count.
type Limits struct {
	IOPS, ReadIOPS, WriteIOPS    uint64 // requests a second
	Bytes, ReadBytes, WriteBytes uint64 // bytes a second
	// Burst is for how long an idle volume saves up its rates, in whole milliseconds; 0
	// means 100 ms.
	Burst time.Duration
}

// SetLimits replaces the limits of an attached volume; they are in force when it returns.
func (c *Client) SetLimits(ctx context.Context, volumeID string, l Limits) error {
	_, err := c.devices.SetLimits(ctx, &serverv1.SetLimitsRequest{VolumeId: volumeID, Limits: l.message()})
	return err
}

// message is nil for no limits at all.
func (l Limits) message() *serverv1.Limits {
	if l == (Limits{}) {
		return nil
	}
	return &serverv1.Limits{
		Iops: l.IOPS, ReadIops: l.ReadIOPS, WriteIops: l.WriteIOPS,
		Bytes: l.Bytes, ReadBytes: l.ReadBytes, WriteBytes: l.WriteBytes,
		BurstMs: uint32(l.Burst.Milliseconds()),
	}
}

func limits(l *serverv1.Limits) Limits {
	return Limits{
		IOPS: l.GetIops(), ReadIOPS: l.GetReadIops(), WriteIOPS: l.GetWriteIops(),
		Bytes: l.GetBytes(), ReadBytes: l.GetReadBytes(), WriteBytes: l.GetWriteBytes(),
		Burst: time.Duration(l.GetBurstMs()) * time.Millisecond,
	}
}
