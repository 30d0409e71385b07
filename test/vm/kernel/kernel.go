// Package kernel provides the kernels of the rig's guests: built from the distribution's source as User Mode Linux, or its
// stock packages for QEMU.
package kernel

import (
	"context"
	"errors"
	"fmt"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// Variant names what a kernel is for.
type Variant string

const (
	// Current is the newest kernel that the distribution offers for its stable release.
	Current Variant = "current"
	// Fixed is Current with a ublk driver that deletes devices outside of its global lock.
	Fixed Variant = "fixed"
	// LTS is the stable release's own kernel.
	LTS Variant = "lts"
)

// Variants lists all variants.
var Variants = []Variant{Current, Fixed, LTS}

// Machine is the kind of machine that a kernel runs on.
type Machine string

const (
	// UML is a Linux process: User Mode Linux.
	UML Machine = "uml"
	// PC is an emulated or virtualized x86 machine: QEMU with or without KVM.
	PC Machine = "pc"
)

// Kernel is a kernel ready to boot, in the cache.
type Kernel struct {
	Variant Variant
	Machine Machine
	// Release is what uname -r says in the guest.
	Release string
	// Source names the package and version it comes from.
	Source string
	// Image is the executable (UML) or the bzImage (PC).
	Image string
	// Modules is a directory with lib/modules/<Release>, complete with modules.dep.
	Modules string
	// Ublk is a ublk driver to load in place of the one in Modules; "" means that one.
	Ublk string
}

// ErrNotForMachine is the answer for a variant that the machine kind can't run.
var ErrNotForMachine = errors.New("no such kernel for this machine kind")

// Get returns the variant's kernel for a machine kind, and builds or downloads it first if the cache lacks it (minutes; shown as
// progress).
func Get(ctx context.Context, h *host.Host, v Variant, m Machine) (Kernel, error) {
	return Kernel{}, fmt.Errorf("kernel %s for %s: %w", v, m, errors.ErrUnsupported)
}
