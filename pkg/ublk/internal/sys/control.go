package sys

import (
	"structs"
	"unsafe"
)

// NoQueue is CtrlCmd.QueueID of a command that is not about one queue.
const NoQueue = 0xffff

// AnyDevice is the device id by which ADD_DEV lets the kernel pick.
const AnyDevice = 0xffffffff

// FeaturesLen is the only length GET_FEATURES accepts.
const FeaturesLen = 8

// CtrlCmd is the payload of a control command.
type CtrlCmd struct {
	_       structs.HostLayout
	DevID   uint32
	QueueID uint16
	// Len is the size of the buffer at Addr.
	Len  uint16
	Addr uint64
	// Data is an argument in place: a PID, a size in sectors, a timeout.
	Data uint64
	// PathLen counts the bytes of the char device's path, NUL included, that
	// precede the data at Addr (GET_DEV_INFO2).
	PathLen uint16
	_       uint16
	_       uint32
}

// DevInfo describes a device, in ADD_DEV and GET_DEV_INFO.
type DevInfo struct {
	_      structs.HostLayout
	Queues uint16
	Depth  uint16
	State  uint16
	// DescSize is read by drivers with IO_DESC_SIZE, where that flag is set.
	DescSize   uint16
	MaxIOBytes uint32
	DevID      uint32
	ServerPid  int32
	_          uint32
	Flags      uint64
	// ServerFlags are stored by the kernel for the server, and not read.
	ServerFlags uint64
	OwnerUID    uint32
	OwnerGID    uint32
	_           uint64
	_           uint64
}

var (
	_ [32]byte = [unsafe.Sizeof(CtrlCmd{})]byte{}
	_ [64]byte = [unsafe.Sizeof(DevInfo{})]byte{}
)
