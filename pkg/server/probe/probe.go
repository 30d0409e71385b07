// Package probe finds out whether this machine can serve ublk devices, and what
// to do where it cannot.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// Options adjust a probe; the zero value is fine.
type Options struct {
	// Root is put before every path that is read; for tests.
	Root string
	// Open opens the driver; nil means ublk.OpenControl. For tests.
	Open func() (Driver, error)
}

// A Driver is what the probe asks of an open ublk driver.
type Driver interface {
	Features() ublk.Features
	ProbeDeleteKind(context.Context) (ublk.DeleteKind, error)
	Close() error
}

// A Report is what was found.
type Report struct {
	Kernel          string    `json:"kernel"`
	Usable          bool      `json:"usable"`
	Checks          []Check   `json:"checks"`
	Features        []Feature `json:"features,omitempty"`
	DeleteKind      string    `json:"deleteKind,omitempty"`
	DeleteKindMeans string    `json:"deleteKindMeans,omitempty"`
}

// A Check is one thing that is there or not. Those that are not OK and Needed
// make the machine unusable.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"`
	Detail string `json:"detail"`
	// Remedy says what to do, if something is to be done.
	Remedy string `json:"remedy,omitempty"`
}

// A Feature is one of the driver that csi-ublk makes use of.
type Feature struct {
	Name     string `json:"name"`
	Offered  bool   `json:"offered"`
	Required bool   `json:"required"`
	Gives    string `json:"gives"`
}

var features = []struct {
	flag     ublk.Features
	required bool
	gives    string
}{
	{ublk.UserCopy, true, "moves data without pinned buffers: an idle volume costs no memory"},
	{ublk.UserRecovery, true, "devices survive their server"},
	{ublk.UserRecoveryReissue, true, "I/O under way when a worker dies is done again, not failed"},
	{ublk.UpdateSize, false, "volumes grow while in use"},
	{ublk.Quiesce, false, "a device can change its worker without a crash"},
	{ublk.SafeStop, false, "the kernel itself refuses to detach a disk that is open"},
	{ublk.NoAutoPartScan, false, "no partition scan when a device starts: attaching is quicker"},
	{ublk.AutoBufReg, false, "zero copy (not used yet)"},
	{ublk.BatchIO, false, "many requests a command (not used yet)"},
}

var kinds = map[ublk.DeleteKind]string{
	ublk.DeleteNoWait:   "deleting a device waits for nothing",
	ublk.DeleteLocked:   "deleting a device holds up all others; csi-ublk's order of deletion avoids that",
	ublk.DeleteUnlocked: "devices are deleted in parallel",
}

// Run looks at the machine. It changes nothing, except that it adds and deletes
// a few devices which never become disks.
func Run(ctx context.Context, o Options) Report {
	if o.Open == nil {
		o.Open = func() (Driver, error) { return ublk.OpenControl(ublk.ControlOptions{}) }
	}
	r := Report{Kernel: release()}
	// First, since it makes the driver's node in a /dev where nothing else does.
	driver, err := o.Open()
	r.Checks = append(r.Checks, o.root(), o.module(), o.devtmpfs(), o.ioUring(), o.maxDevices())
	c := Check{Name: "ublk driver", Needed: true, OK: err == nil, Detail: "answers"}
	if err != nil {
		c.Detail = err.Error()
	}
	r.Checks = append(r.Checks, c)
	if err == nil {
		defer driver.Close()
		r.Features = listFeatures(driver.Features())
		kind, err := driver.ProbeDeleteKind(ctx)
		r.DeleteKind, r.DeleteKindMeans = kind.String(), kinds[kind]
		if err != nil {
			r.DeleteKindMeans = err.Error()
		}
	}
	r.Usable = true
	for _, c := range r.Checks {
		r.Usable = r.Usable && (c.OK || !c.Needed)
	}
	for _, f := range r.Features {
		r.Usable = r.Usable && (f.Offered || !f.Required)
	}
	return r
}

func listFeatures(have ublk.Features) []Feature {
	var list []Feature
	for _, f := range features {
		list = append(list, Feature{Name: f.flag.Names()[0], Offered: have.Has(f.flag), Required: f.required, Gives: f.gives})
	}
	return list
}

func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func (o Options) root() Check {
	c := Check{Name: "root", Needed: true, OK: os.Geteuid() == 0, Detail: fmt.Sprintf("user %d", os.Geteuid())}
	if !c.OK {
		c.Remedy = "run as root, in a privileged container or on the host"
	}
	return c
}

func (o Options) module() Check {
	c := Check{Name: "ublk_drv module", Needed: true, Detail: "loaded"}
	_, err := os.Stat(o.Root + "/sys/class/ublk-char")
	c.OK = err == nil
	if !c.OK {
		c.Detail = "not loaded"
		c.Remedy = "modprobe ublk_drv on the host, and name it in /etc/modules-load.d; it needs Linux 6.5 or newer with CONFIG_BLK_DEV_UBLK"
	}
	return c
}

func (o Options) devtmpfs() Check {
	c := Check{Name: "/dev/ublk-control", Needed: true}
	st, err := os.Stat(o.Root + "/dev/ublk-control")
	switch {
	case err == nil && st.Mode()&fs.ModeCharDevice != 0:
		c.OK, c.Detail = true, "is there"
	case err == nil:
		c.Detail = "is no character device"
	case errors.Is(err, fs.ErrNotExist):
		c.Detail = "is not there"
	default:
		c.Detail = err.Error()
	}
	if !c.OK {
		c.Remedy = "load the module; in a container, mount the host's /dev"
	}
	return c
}

func (o Options) ioUring() Check {
	c := Check{Name: "io_uring", Needed: true, OK: true, Detail: "allowed"}
	b, err := os.ReadFile(o.Root + "/proc/sys/kernel/io_uring_disabled")
	if err != nil {
		return c // the switch is younger than io_uring
	}
	switch strings.TrimSpace(string(b)) {
	case "0":
	case "1":
		c.Detail = "kernel.io_uring_disabled=1: allowed to privileged processes only"
	default:
		c.OK, c.Detail = false, "kernel.io_uring_disabled="+strings.TrimSpace(string(b))+": forbidden to everybody"
		c.Remedy = "sysctl kernel.io_uring_disabled=1, and set it in /etc/sysctl.d"
	}
	return c
}

func (o Options) maxDevices() Check {
	c := Check{Name: "ublks_max", OK: true}
	b, err := os.ReadFile(o.Root + "/sys/module/ublk_drv/parameters/ublks_max")
	if err != nil {
		c.Detail = "the driver has no such limit"
		return c
	}
	c.Detail = strings.TrimSpace(string(b)) + " devices; csi-ublk server raises it at need"
	return c
}
