package uring

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"structs"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	enterGetEvents = 1 << 0
	enterExtArg    = 1 << 3

	registerFiles          = 2
	registerIOWQMaxWorkers = 19
)

type sqOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
	_                                                           uint64
}

type cqOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
	_                                                           uint64
}

// params is struct io_uring_params.
type params struct {
	_                    structs.HostLayout
	sqEntries, cqEntries uint32
	flags                uint32
	threadCPU            uint32
	threadIdle           uint32
	features             uint32
	wqFD                 uint32
	_                    [3]uint32
	sq                   sqOffsets
	cq                   cqOffsets
}

var _ [120]byte = [unsafe.Sizeof(params{})]byte{}

func setup(entries uint32, p *params) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// explainSetup adds what an administrator has to change.
func explainSetup(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (%s)", err, whoForbids())
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w (the kernel is built without io_uring, or a seccomp profile hides it)", err)
	}
	return err
}

// whoForbids says which of the two switches forbids io_uring, and what turns it.
func whoForbids() string {
	b, _ := os.ReadFile("/proc/sys/kernel/io_uring_disabled") // younger than io_uring
	switch strings.TrimSpace(string(b)) {
	case "2":
		return "kernel.io_uring_disabled=2 forbids io_uring to everybody: sysctl kernel.io_uring_disabled=1 on the node"
	case "1":
		return "kernel.io_uring_disabled=1 allows io_uring to CAP_SYS_ADMIN only, or a seccomp profile forbids it: run in a privileged container"
	}
	return "a seccomp profile forbids io_uring: run in a privileged container"
}

// Submit hands over every new entry and lets completions in, without waiting
// for any. It must be quick, and holds on to the Go scheduler's slot: giving it
// up and taking it back costs more than the call itself.
func (r *Ring) Submit() error { return r.submit(r.publish()) }

func (r *Ring) submit(n uintptr) error {
	if r.torn != nil {
		r.tail = atomic.LoadUint32(r.sqHead) // there is always space
		return r.torn
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), n, 0, enterGetEvents, 0, 0)
	return r.entered(errno)
}

// Wait hands over every new entry, and blocks until there is a completion or a
// signal.
func (r *Ring) Wait() error {
	n := r.publish()
	if r.Ready() || r.torn != nil {
		return r.Submit()
	}
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), n, 1, enterGetEvents, 0, 0)
	return r.entered(errno)
}

// WaitFor is Wait that returns after so many nanoseconds at the latest.
func (r *Ring) WaitFor(nanos int64) error {
	n := r.publish()
	if r.Ready() || r.torn != nil {
		return r.Submit()
	}
	r.timeout = [2]int64{nanos / 1e9, nanos % 1e9}
	r.waitArg = waitArg{timeout: uint64(uintptr(unsafe.Pointer(&r.timeout)))}
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), n, 1, enterGetEvents|enterExtArg,
		uintptr(unsafe.Pointer(&r.waitArg)), unsafe.Sizeof(r.waitArg))
	if errno == unix.ETIME {
		errno = 0
	}
	return r.entered(errno)
}

// waitArg is struct io_uring_getevents_arg.
type waitArg struct {
	_             structs.HostLayout
	sigmask       uint64
	sigmaskSize   uint32
	minWaitMicros uint32
	timeout       uint64 // address of a struct __kernel_timespec
}

var _ [24]byte = [unsafe.Sizeof(waitArg{})]byte{}

// publish tells the kernel our tail, and returns how many entries it has yet to
// take: after an interrupted call, also those of before.
func (r *Ring) publish() uintptr {
	atomic.StoreUint32(r.sqTail, r.tail)
	return uintptr(r.tail - atomic.LoadUint32(r.sqHead))
}

// entered hides the errors after which the caller should look at its
// completions and enter again: a signal (the Go runtime sends many), a lack of
// memory, or a completion queue so full that it must be emptied first.
//
// A kernel that has no memory for an entry in the middle of a chain runs what it has as a
// chain of its own, and would run the rest later, whatever became of the first part. That
// is the end of the ring: nothing may be handed over any more.
func (r *Ring) entered(errno unix.Errno) error {
	if last := atomic.LoadUint32(r.sqHead) - 1; r.at(last).Flags&Link != 0 {
		r.torn = errors.New("io_uring_enter: the kernel took only a part of a chain")
		return r.torn
	}
	switch errno {
	case 0, unix.EINTR, unix.EAGAIN, unix.EBUSY:
		return nil
	}
	return fmt.Errorf("io_uring_enter: %w", errno)
}

// Overflowing reports that the kernel keeps completions for which the queue had
// no place; the next Submit or Wait brings them.
func (r *Ring) Overflowing() bool { return atomic.LoadUint32(r.sqFlags)&sqCQOverflow != 0 }

// RegisterFile makes the ring hold the file of fd until its end, operations in
// flight included.
func (r *Ring) RegisterFile(fd int) error {
	list := [1]int32{int32(fd)}
	return r.register(registerFiles, unsafe.Pointer(&list), 1)
}

// SetWorkers bounds the kernel threads that run this thread's blocking
// operations, for regular files and for all else. It must be called by the
// ring's thread.
func (r *Ring) SetWorkers(files, others uint32) error {
	list := [2]uint32{files, others}
	return r.register(registerIOWQMaxWorkers, unsafe.Pointer(&list), 2)
}

func (r *Ring) register(op uintptr, arg unsafe.Pointer, n uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), op, uintptr(arg), n, 0, 0)
	if errno != 0 {
		return fmt.Errorf("io_uring_register %d: %w", op, errno)
	}
	return nil
}
