package sys

import (
	"structs"
	"unsafe"
)

// IOCmd is the payload of a queue's command.
type IOCmd struct {
	_     structs.HostLayout
	Queue uint16
	Tag   uint16
	// Result goes to the kernel: bytes done, or a negative errno.
	Result int32
	// Addr must be 0 with USER_COPY.
	Addr uint64
}

// IODesc is a request as the driver writes it into the memory it shares with
// the server, one per tag.
type IODesc struct {
	_       structs.HostLayout
	OpFlags uint32
	Sectors uint32
	Start   uint64 // in sectors
	Addr    uint64 // unused with USER_COPY
}

// The low 8 bits of IODesc.OpFlags.
const (
	OpRead        = 0
	OpWrite       = 1
	OpFlush       = 2
	OpDiscard     = 3
	OpWriteZeroes = 5
	OpMask        = 0xff
)

// Flags among the other bits of IODesc.OpFlags.
const (
	FlagFUA     = 1 << 13
	FlagNoUnmap = 1 << 15
)

// MaxDepth bounds a queue: descriptors of queue q are mapped at
// q * round up(MaxDepth * sizeof(IODesc), page).
const MaxDepth = 4096

// The place of a request's bytes on the char device: reading takes the data of
// a WRITE request, writing fills that of a READ.
const (
	dataBase   = 0x80000000
	tagShift   = 25
	queueShift = tagShift + 16
)

// DataOffset is where byte 0 of the request of a tag lies.
func DataOffset(queue, tag uint16) uint64 {
	return dataBase + uint64(queue)<<queueShift + uint64(tag)<<tagShift
}

// DescOffset is where the descriptors of a queue are mapped, and DescBytes how
// many bytes must be mapped: exactly these.
func DescOffset(queue, pageSize int) int64 {
	return int64(queue) * int64(roundUp(MaxDepth*int(unsafe.Sizeof(IODesc{})), pageSize))
}

// DescBytes is the length of a queue's descriptors, in whole pages.
func DescBytes(depth, pageSize int) int {
	return roundUp(depth*int(unsafe.Sizeof(IODesc{})), pageSize)
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

var (
	_ [16]byte = [unsafe.Sizeof(IOCmd{})]byte{}
	_ [24]byte = [unsafe.Sizeof(IODesc{})]byte{}
)
