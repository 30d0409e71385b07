package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/root"
)

// Accel is a way of running guests.
type Accel string

const (
	// AccelUML is User Mode Linux: one CPU, native speed of computation, no virtualization needed.
	AccelUML Accel = "uml"
	// AccelKVM is QEMU with hardware virtualization.
	AccelKVM Accel = "kvm"
	// AccelTCG is QEMU with emulation: slow, one CPU.
	AccelTCG Accel = "tcg"
)

// Machine is the machine kind that the kernels of this way of running are for.
func (a Accel) Machine() kernel.Machine {
	if a == AccelUML {
		return kernel.UML
	}
	return kernel.PC
}

var qemuTools = []host.Tool{
	{Program: "qemu-system-x86_64", Package: "qemu-system-x86"}, {Program: "qemu-img", Package: "qemu-utils"},
}

// Tools lists what guests of this way need of the host.
func (a Accel) Tools() []host.Tool {
	if a == AccelUML {
		return nil
	}
	return qemuTools
}

// Choose picks the way of running a kernel variant. want is "auto", "" (the environment's VM_ACCEL, or auto) or the name of a
// way. Auto takes KVM where a guest really starts with it, then User Mode Linux, then emulation. A variant that the wanted way
// has no kernel for gets the next one that has, and the progress says so.
func Choose(ctx context.Context, h *host.Host, want string, v kernel.Variant) (Accel, error) {
	if want == "" {
		want = os.Getenv("VM_ACCEL")
	}
	order := []Accel{AccelUML, AccelTCG}
	switch want {
	case "", "auto":
		if kernel.Supports(v, kernel.PC) && KVMWorks(ctx, h) {
			return AccelKVM, nil
		}
	case string(AccelKVM):
		order = []Accel{AccelKVM, AccelUML}
	case string(AccelTCG):
		order = []Accel{AccelTCG, AccelUML}
	case string(AccelUML):
	default:
		return "", fmt.Errorf("VM_ACCEL=%s: want kvm, uml, tcg or auto", want)
	}
	for i, a := range order {
		if !kernel.Supports(v, a.Machine()) {
			continue
		}
		if i > 0 && want != "" && want != "auto" {
			h.Say("kernel %s does not exist for %s, %s is used", v, order[0], a)
		}
		return a, nil
	}
	return "", fmt.Errorf("kernel %s: %w", v, kernel.ErrNotForMachine)
}

// KVMWorks says whether a guest really starts with KVM here. On some machines /dev/kvm is there and no stock kernel gets
// through its boot, so one is booted; the answer is kept until the machine boots again.
func KVMWorks(ctx context.Context, h *host.Host) bool {
	if err := unix.Access("/dev/kvm", unix.R_OK|unix.W_OK); err != nil {
		return false
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false
	}
	note := "kvm." + strings.TrimSpace(string(id))
	if s, ok := h.Noted(note, 0); ok {
		return s == "yes"
	}
	answer := "yes"
	err = h.Step("kvm: trying a guest", 10*time.Second, func() error { return tryKVM(ctx, h) })
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		h.Say("kvm: not used: %v", err)
		answer = "no"
	}
	_ = h.Note(note, answer) // Without it the next run tries again.
	return answer == "yes"
}

func tryKVM(ctx context.Context, h *host.Host) error {
	if err := h.Need(ctx, qemuTools...); err != nil {
		return err
	}
	k, err := kernel.Get(ctx, h, kernel.LTS, kernel.PC)
	if err != nil {
		return err
	}
	image, err := root.Build(ctx, h, root.Spec{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	g, err := Start(ctx, h, Spec{Accel: AccelKVM, Kernel: k, Root: image})
	if err != nil {
		return err
	}
	_, err = g.Shell(ctx, "test -c /dev/ublk-control")
	return errors.Join(err, g.Close())
}
