package bench

import (
	"bytes"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// machine says as much of what the kernel runs on as it shows.
func machine(cpuinfo string) string {
	text, _ := os.ReadFile(cpuinfo)
	var flags string
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "flags" {
			flags = value
			break
		}
	}
	switch {
	case bytes.Contains(text, []byte("User Mode Linux")):
		return "User Mode Linux"
	case strings.Contains(flags+" ", " hypervisor "):
		vendor, _ := os.ReadFile("/sys/class/dmi/id/sys_vendor")
		return strings.TrimSpace("virtual machine " + string(bytes.TrimSpace(vendor)))
	}
	return "no virtual machine seen"
}
