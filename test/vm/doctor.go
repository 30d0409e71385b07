package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/root"
)

func doctorCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine offers, what is missing, and how to get it",
		Long:  "Looks only: it installs, downloads and builds nothing.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := open()
			if err != nil {
				return err
			}
			return doctor(cmd, h)
		},
	}
}

func doctor(cmd *cobra.Command, h *host.Host) error {
	out := cmd.OutOrStdout()
	say := func(what, format string, args ...any) {
		fmt.Fprintf(out, "%-20s %s\n", what, fmt.Sprintf(format, args...))
	}
	say("machine", "%d CPUs, %s of memory, kernel %s", runtime.NumCPU(), memory(), release())
	say("user", "%s", user())
	say("kvm", "%s", kvm())
	say("cache", "%s, %s free", h.Cache, free(h.Cache))
	say("shared memory", "%s free in /dev/shm (guests' memory; less than a guest has, and it goes to the cache)", free("/dev/shm"))
	for _, v := range kernel.Variants {
		for _, m := range []kernel.Machine{kernel.UML, kernel.PC} {
			if !kernel.Supports(v, m) {
				continue
			}
			state := "not made yet"
			if what, ok := kernel.Cached(h, v, m); ok {
				state = what + ", in the cache"
			}
			say(fmt.Sprintf("kernel %s (%s)", v, m), "%s", state)
		}
	}
	if root.Cached(h) {
		say("root", "in the cache")
	} else {
		say("root", "not made yet (vm root: about 2 minutes)")
	}
	tools := slices.Concat(kernel.UMLTools(), root.Tools(), guest.AccelTCG.Tools())
	missing := host.Missing(tools)
	if len(missing) == 0 {
		say("tools", "all there")
		return nil
	}
	say("tools", "missing: %s", strings.Join(missing, " "))
	if os.Geteuid() == 0 {
		say("", "they are installed when they are needed, or now by: %s", host.InstallCommand(missing))
		return nil
	}
	say("", "get them by: sudo %s", host.InstallCommand(missing))
	return exitError{status: 1}
}

func user() string {
	if os.Geteuid() == 0 {
		return "root: everything can be built, clusters can run"
	}
	return "not root: guests run if kernel and root file system are in the cache; to make them, and for clusters, be root"
}

func kvm() string {
	if err := unix.Access("/dev/kvm", unix.R_OK|unix.W_OK); err != nil {
		return "no (/dev/kvm: " + err.Error() + "): User Mode Linux, and emulation for lts, are used"
	}
	return "/dev/kvm is there; whether a guest starts with it is tried with the first one"
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func memory() string {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return "unknown size"
	}
	return gib(uint64(si.Totalram) * uint64(si.Unit))
}

func free(path string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "unknown"
	}
	return gib(st.Bavail * uint64(st.Bsize))
}

func gib(n uint64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
