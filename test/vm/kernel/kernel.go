// Package kernel provides the kernels of the rig's guests: built from the distribution's source as User Mode Linux, or its
// stock packages for QEMU.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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

// ParseVariant checks a variant's name.
func ParseVariant(s string) (Variant, error) {
	for _, v := range Variants {
		if s == string(v) {
			return v, nil
		}
	}
	return "", fmt.Errorf("kernel %q: want current, fixed or lts", s)
}

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
	// Modules is the directory for the guest's /lib/modules: it holds <Release>, complete with modules.dep.
	Modules string
	// Note is a word about the variant that a person should see, or "".
	Note string
}

// ErrNotForMachine is the answer for a variant that the machine kind can't run.
var ErrNotForMachine = errors.New("no such kernel for this machine kind")

// Supports says whether the variant exists for the machine kind. The distribution's LTS source can't be taken as User Mode
// Linux in place of the stock package: that one is the point of the variant. The fixed driver is built with the UML kernel.
func Supports(v Variant, m Machine) bool {
	switch v {
	case Current:
		return true
	case Fixed:
		return m == UML
	default:
		return m == PC
	}
}

// Get returns the variant's kernel for a machine kind, and builds or downloads it first if the cache lacks it (minutes; shown as
// progress). Which version that is was asked of the archive at most a week ago.
func Get(ctx context.Context, h *host.Host, v Variant, m Machine) (Kernel, error) {
	if !Supports(v, m) {
		return Kernel{}, fmt.Errorf("kernel %s on a %s machine: %w", v, m, ErrNotForMachine)
	}
	var k Kernel
	var err error
	if m == UML {
		k, err = userMode(ctx, h, v)
	} else {
		k, err = stock(ctx, h, v)
	}
	if err != nil {
		return Kernel{}, fmt.Errorf("kernel %s (%s): %w", v, m, err)
	}
	k.Variant, k.Machine = v, m
	return k, nil
}

// read fills in what the files of a cache entry say.
func (k *Kernel) read(dir string) error {
	for name, to := range map[string]*string{"release": &k.Release, "source": &k.Source} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("read cache entry: %w", err)
		}
		*to = strings.TrimSpace(string(b))
	}
	return nil
}
