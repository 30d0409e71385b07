package ublk

import "time"

// ControlPath is the driver's control device.
const ControlPath = "/dev/ublk-control"

// ControlOptions adjust a Control; the zero value is fine.
type ControlOptions struct {
	// Path of the control device; "" means ControlPath.
	Path string
	// Workers is how many commands run at once; 0 means 32. Each occupies a
	// thread of the kernel while it runs.
	Workers int
	// Timeout bounds each command, on top of its context; 0 means 30 s.
	Timeout time.Duration
	// Owner is the DeviceOptions.Owner of the devices that ProbeDeleteKind
	// makes, so that they are known again should the process die meanwhile.
	Owner uint64
}

func (o ControlOptions) withDefaults() ControlOptions {
	if o.Path == "" {
		o.Path = ControlPath
	}
	if o.Workers <= 0 {
		o.Workers = 32
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	return o
}
