package uring

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CopiesCommands says whether the kernel copies a driver command when it takes the entry.
// Some (6.12 is one) read it anew when a command that is linked behind others is issued,
// by when its place in the queue may hold another one: that one would be carried out
// twice, with whatever result, and this one never. Commands must not be linked then.
//
// It is found out by a linked command (getsockopt, Linux 6.7) whose entry is cleared
// before its turn comes; where that is not known, the answer is the safe one.
func CopiesCommands() (bool, error) {
	r, err := New(Config{Entries: 4, CompletionEntries: 8})
	if err != nil {
		return false, err
	}
	defer r.Close()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return false, fmt.Errorf("pipe: %w", err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(socket)

	copied.Lock()
	defer copied.Unlock()
	copied.option = 0
	const second = 2
	wait := r.Next()
	wait.Read(ends[0], unsafe.Pointer(&copied.first), 1, 0)
	wait.Flags = Link
	command := r.Next()
	command.socketOption(socket, unix.SOL_SOCKET, unix.SO_TYPE, &copied.option)
	command.UserData = second
	if err := r.Submit(); err != nil {
		return false, err
	}
	*command = SQE{}
	if _, err := unix.Write(ends[1], []byte{0}); err != nil {
		return false, fmt.Errorf("write to pipe: %w", err)
	}
	var e CQE
	for e.UserData != second {
		if r.Peek(&e) {
			continue
		}
		if err := r.Wait(); err != nil {
			return false, err
		}
	}
	return e.Res > 0 && copied.option == unix.SOCK_STREAM, nil
}

// copied is where the kernel writes what CopiesCommands asks for. A variable of the
// function would be on its stack, which moves, since the kernel's copy of its address is
// none that the compiler knows.
var copied struct {
	sync.Mutex
	first  [8]byte
	option int32
}

// socketOption is getsockopt(2) as a command of the socket
// (SOCKET_URING_OP_GETSOCKOPT).
func (s *SQE) socketOption(fd int, level, name uint32, value *int32) {
	const getSockOpt = 2
	*(*uint64)(s.Command(fd, getSockOpt)) = uint64(uintptr(unsafe.Pointer(value)))
	s.addr = uint64(level) | uint64(name)<<32
	s.fileIdx = int32(unsafe.Sizeof(*value))
}
