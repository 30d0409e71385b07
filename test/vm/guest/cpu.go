package guest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// pinned puts a User Mode Linux kernel on one CPU of the host. Each system call in
// such a guest goes back and forth between two processes of the host, of which only
// one runs at a time: side by side on two CPUs they wake each other up over an
// interrupt, which in a virtual machine costs many times what the call does (75 µs
// a call instead of 12, measured).
//
// Guests get different CPUs as long as there are any. claim is held for as long as
// the guest runs; it may be nil.
func pinned(argv []string) (_ []string, claim io.Closer, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, nil, fmt.Errorf("ask which CPUs there are: %w", err)
	}
	var cpus []int
	for cpu := range len(set) * strconv.IntSize {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	on := cpus[rand.IntN(len(cpus))] // if all are taken
	for _, cpu := range cpus {
		// An abstract socket is a lock that ends with its process and leaves no file.
		l, err := net.Listen("unix", fmt.Sprintf("@csi-ublk/vm/guest-on-cpu-%d", cpu))
		if err == nil {
			on, claim = cpu, l
			break
		}
	}
	return append([]string{"taskset", "--cpu-list", strconv.Itoa(on)}, argv...), claim, nil
}
