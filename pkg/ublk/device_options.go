package ublk

import (
	"fmt"
	"os"
)

// maxIOLimit is what the offset of a byte in a request has bits for.
const maxIOLimit = 32 << 20

// withDefaults fills in zero values and refuses what no kernel would take.
func (o DeviceOptions) withDefaults() (DeviceOptions, error) {
	if o.Queues == 0 {
		o.Queues = 1
	}
	if o.Depth == 0 {
		o.Depth = DefaultDepth
	}
	if o.MaxIOBytes == 0 {
		o.MaxIOBytes = DefaultMaxIOBytes
	}
	o.Features |= UserCopy
	page := uint32(os.Getpagesize())
	switch {
	case o.ID < -1 || o.ID >= 1<<20:
		return o, fmt.Errorf("device number %d is not between 0 and %d, nor -1", o.ID, 1<<20-1)
	case o.Queues > MaxQueues:
		return o, fmt.Errorf("%d queues are more than %d", o.Queues, MaxQueues)
	case o.Depth > MaxDepth:
		return o, fmt.Errorf("depth %d is more than %d", o.Depth, MaxDepth)
	case o.MaxIOBytes%page != 0 || o.MaxIOBytes > maxIOLimit:
		return o, fmt.Errorf("largest I/O of %d bytes is not a multiple of %d up to %d", o.MaxIOBytes, page, maxIOLimit)
	}
	return o, nil
}
