package worker

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// prIOFlusher is PR_SET_IO_FLUSHER (include/uapi/linux/prctl.h).
const prIOFlusher = 57

// protect makes the process fit to serve the disks that the kernel writes its
// dirty pages to: its memory stays resident, an allocation of its threads never
// waits for write-back (which would wait for this process), and the kernel kills
// almost anything else first. It returns what could not be had: without
// CAP_IPC_LOCK or CAP_SYS_RESOURCE I/O works, but may deadlock when memory is
// short. It must run before any thread is locked that should have the flags;
// later threads inherit them.
func protect() (warnings []string) {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		warnings = append(warnings, fmt.Sprintf("lock memory: %v", err))
	}
	// All threads at once, and only without cgo; passing 0 would clear the flag.
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, prIOFlusher, 1, 0, 0, 0, 0); errno != 0 {
		warnings = append(warnings, fmt.Sprintf("set io_flusher: %v", errno))
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0); err != nil {
		warnings = append(warnings, fmt.Sprintf("set oom_score_adj: %v", err))
	}
	return warnings
}

// giveUpAdmin takes CAP_SYS_ADMIN from all threads. The kernel then does not look for
// partitions on a disk whose queues they serve from then on. Without NoAutoPartScan that
// look is a part of START_DEV: should server and workers be killed together, nobody would
// answer it, and the server would stay in the kernel, unkillable, until the next boot.
// What needs the capability, to make the rings where io_uring is restricted, is over.
func giveUpAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	data[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	data[0].Permitted &^= 1 << unix.CAP_SYS_ADMIN
	data[0].Inheritable &^= 1 << unix.CAP_SYS_ADMIN
	// All threads at once, and only without cgo.
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("give up CAP_SYS_ADMIN: %w", errno)
	}
	return nil
}
