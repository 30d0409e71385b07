package ublk

import "fmt"

// DeviceState is UBLK_S_DEV_*: where a device is in its life.
type DeviceState uint16

// The states of a device.
const (
	// StateDead: added but not started, or stopped: there is no /dev/ublkbN.
	StateDead DeviceState = 0
	// StateLive: started and, as far as the kernel knows, served.
	StateLive DeviceState = 1
	// StateQuiesced: the server is gone, I/O waits for a new one.
	StateQuiesced DeviceState = 2
	// StateFailIO: the server is gone, I/O fails until there is a new one.
	StateFailIO DeviceState = 3
)

func (s DeviceState) String() string {
	switch s {
	case StateDead:
		return "DEAD"
	case StateLive:
		return "LIVE"
	case StateQuiesced:
		return "QUIESCED"
	case StateFailIO:
		return "FAIL_IO"
	}
	return fmt.Sprintf("state %d", uint16(s))
}

// Defaults and limits of a device.
const (
	DefaultDepth      = 64
	DefaultMaxIOBytes = 512 << 10
	MaxDepth          = 4096
	MaxQueues         = 4096
)

// DeviceOptions describes a device to add.
type DeviceOptions struct {
	// ID is N of /dev/ublkbN; -1 lets the kernel pick. Mind that the zero
	// value asks for device 0.
	ID int
	// Queues is the number of hardware queues; 0 means 1. The kernel cuts it
	// to its number of CPUs: read DeviceInfo.Queues.
	Queues uint16
	// Depth is the number of requests in flight a queue; 0 means 64.
	Depth uint16
	// MaxIOBytes is the size of the largest request, a power of two and not
	// less than a page; 0 means 512 KiB. A Ring needs buffers of that size.
	MaxIOBytes uint32
	// Features are asked for; what the kernel granted is in
	// DeviceInfo.Features. UserCopy is always added: the only way this package
	// moves data.
	Features Features
	// Owner is kept by the kernel and not looked at by it (ublksrv_flags): a
	// tag by which a server knows its own devices again.
	Owner uint64
}

// DeviceInfo is what the kernel says of a device (struct ublksrv_ctrl_dev_info).
type DeviceInfo struct {
	ID            uint32
	Queues, Depth uint16
	State         DeviceState
	MaxIOBytes    uint32
	// Pid is the process that serves the device, as this process's PID
	// namespace numbers it; 0 or -1 without one.
	Pid      int
	Features Features
	Owner    uint64
}

// BlockPath is the path of the disk: /dev/ublkbN.
func (i DeviceInfo) BlockPath() string { return fmt.Sprintf("/dev/ublkb%d", i.ID) }

// CharPath is the path of the device its server opens: /dev/ublkcN.
func (i DeviceInfo) CharPath() string { return fmt.Sprintf("/dev/ublkc%d", i.ID) }
