package uring

import (
	"structs"
	"unsafe"
)

// Operations (IORING_OP_*).
const (
	opFsync       = 3
	opAsyncCancel = 14
	opFallocate   = 17
	opRead        = 22
	opWrite       = 23
	opURingCmd    = 46
)

// Flags of an entry (IOSQE_*).
const (
	// Link starts the next entry when this one has fully succeeded; if it has
	// not (a short read counts), the rest of the chain ends with ECANCELED.
	Link = 1 << 2
	// SkipSuccess suppresses the completion of an entry that succeeds. If it
	// fails, it completes, and the rest of its chain then does so silently.
	SkipSuccess = 1 << 6
)

const fsyncDatasync = 1

// SQE is a submission entry (struct io_uring_sqe). A 128-byte one continues
// behind Cmd.
type SQE struct {
	_        structs.HostLayout
	opcode   uint8
	Flags    uint8
	ioprio   uint16
	fd       int32
	off      uint64
	addr     uint64
	len      uint32
	opFlags  uint32
	UserData uint64
	bufIndex uint16
	persona  uint16
	fileIdx  int32
	cmd      [16]byte
}

// CQE is a completion (struct io_uring_cqe).
type CQE struct {
	_        structs.HostLayout
	UserData uint64
	// Res is the operation's result, or a negative errno.
	Res   int32
	flags uint32
}

const (
	sqeBytes    = 64
	sqe128Bytes = 128
	cmdOffset   = 48
	cqeBytes    = 16
)

var (
	_ [sqeBytes]byte  = [unsafe.Sizeof(SQE{})]byte{}
	_ [cmdOffset]byte = [unsafe.Offsetof(SQE{}.cmd)]byte{}
	_ [8]byte         = [unsafe.Offsetof(SQE{}.off)]byte{}
	_ [32]byte        = [unsafe.Offsetof(SQE{}.UserData)]byte{}
	_ [cqeBytes]byte  = [unsafe.Sizeof(CQE{})]byte{}
)

// Read reads n bytes at off of fd into buf, which must not move: memory mapped
// by the caller.
func (s *SQE) Read(fd int, buf unsafe.Pointer, n int, off uint64) {
	s.opcode, s.fd, s.addr, s.len, s.off = opRead, int32(fd), uint64(uintptr(buf)), uint32(n), off
}

// Write writes n bytes of buf at off of fd, with RWF_* flags.
func (s *SQE) Write(fd int, buf unsafe.Pointer, n int, off uint64, rwf uint32) {
	s.opcode, s.fd, s.addr, s.len, s.off = opWrite, int32(fd), uint64(uintptr(buf)), uint32(n), off
	s.opFlags = rwf
}

// Fdatasync makes everything written to fd durable. It has no range.
func (s *SQE) Fdatasync(fd int) {
	s.opcode, s.fd, s.opFlags = opFsync, int32(fd), fsyncDatasync
}

// Fallocate is fallocate(2).
func (s *SQE) Fallocate(fd int, mode uint32, off, n uint64) {
	s.opcode, s.fd, s.off, s.addr, s.len = opFallocate, int32(fd), off, n, mode
}

// Cancel asks that the entry with that UserData be given up. An operation that
// a worker already runs is interrupted, if it can be.
func (s *SQE) Cancel(userData uint64) {
	s.opcode, s.fd, s.addr = opAsyncCancel, -1, userData
}

// Command makes s a driver command and returns where its payload goes: 16
// bytes, or 80 on a ring with 128-byte entries.
func (s *SQE) Command(fd int, op uint32) unsafe.Pointer {
	s.opcode, s.fd, s.off = opURingCmd, int32(fd), uint64(op)
	return unsafe.Pointer(&s.cmd)
}
