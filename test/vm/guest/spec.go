// Package guest starts virtual machines with a real ublk driver and runs commands in them.
package guest

import (
	"crypto/sha256"
	"fmt"
	"io"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
)

// Spec describes a guest. Kernel and Root are needed, everything else has a default.
type Spec struct {
	// Name is the guest's host name; "" means "guest".
	Name string
	// Accel says how the guest runs (see Choose); "" means UML for a kernel of that kind and emulation for the others.
	Accel Accel
	// Kernel is the kernel to boot, of the machine kind that Accel runs.
	Kernel kernel.Kernel
	// Root is an ext4 image for /. The guest writes to a copy-on-write file in Dir, never to it.
	Root string
	// Dir holds the guest's disks, its console log and its memory file. "" means a temporary directory, removed by Close.
	// A directory that already has disks boots with them: that is a reboot, after a power cut if the last guest was killed.
	Dir string
	// DataDiskBytes is the size of the sparse data disk, /dev/data in the guest; 0 means 8 GiB.
	DataDiskBytes int64
	// MemoryMiB is the guest's memory; 0 means 1024.
	MemoryMiB int
	// Shares are host directories that the guest sees.
	Shares []Share
	// Net connects the guest; nil means loopback only.
	Net *Net
	// Modules are loaded at boot besides ublk_drv.
	Modules []string
	// NoUblk leaves ublk_drv out.
	NoUblk bool
	// Cmdline is added to the kernel's command line.
	Cmdline []string
	// Boot is a script for bash that runs when the guest is set up, and before Start returns; its output goes to the
	// console. What it starts in the background lives on.
	Boot string
	// BootLimit ends a guest that takes no commands by then; 0 means 3 minutes, 10 with emulation.
	BootLimit time.Duration
	// SilentAfter is how long the guest may not answer before it counts as hanging and is killed; 0 means a minute.
	SilentAfter time.Duration
	// Console also receives the console's output; nil means only the log in Dir.
	Console io.Writer
}

// Share is a directory of the host that the guest sees, writable unless ReadOnly.
type Share struct {
	Host, Guest string
	ReadOnly    bool
}

// Net is a guest's one network card, eth0.
type Net struct {
	// Namespace is the network namespace (a path such as /run/netns/x) that holds Tap; "" means this process's.
	Namespace string
	// Tap is an existing tap device that the guest's card is plugged into.
	Tap string
	// MAC is the card's address; "" means one made from Address.
	MAC string
	// Address is the guest's address with its prefix length; "" leaves the card without one.
	Address string
	// Gateway is the default route; "" means none.
	Gateway string
}

// Cmd is a command for the guest.
type Cmd struct {
	// Args is the program, found in the guest's PATH, and its arguments.
	Args []string
	// Dir is the working directory; "" means /root.
	Dir string
	// Env is added to a minimal environment (PATH, HOME, TMPDIR).
	Env []string
	// Stdin is read to its end; nil means nothing.
	Stdin io.Reader
	// Stdout and Stderr receive the output; nil discards it.
	Stdout, Stderr io.Writer
}

const (
	defaultDataDiskBytes = 8 << 30
	defaultMemoryMiB     = 1024
	defaultSilentAfter   = time.Minute
)

// withDefaults fills in what was left out, and the share that every guest needs: its kernel's modules.
func (s Spec) withDefaults() Spec {
	if s.Name == "" {
		s.Name = "guest"
	}
	if s.Accel == "" {
		s.Accel = AccelTCG
		if s.Kernel.Machine == kernel.UML {
			s.Accel = AccelUML
		}
	}
	if s.DataDiskBytes == 0 {
		s.DataDiskBytes = defaultDataDiskBytes
	}
	if s.MemoryMiB == 0 {
		s.MemoryMiB = defaultMemoryMiB
	}
	if s.BootLimit == 0 {
		s.BootLimit = 3 * time.Minute
		if s.Accel == AccelTCG {
			s.BootLimit = 10 * time.Minute
		}
	}
	if s.SilentAfter == 0 {
		s.SilentAfter = defaultSilentAfter
	}
	s.Shares = append([]Share{{Host: s.Kernel.Modules, Guest: "/lib/modules", ReadOnly: true}}, s.Shares...)
	if s.Net != nil && s.Net.MAC == "" {
		n := *s.Net
		sum := sha256.Sum256([]byte(s.Name + n.Address))
		n.MAC = fmt.Sprintf("52:54:00:%02x:%02x:%02x", sum[0], sum[1], sum[2])
		s.Net = &n
	}
	return s
}
