package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// What is asked of the machine before anything is made.
const (
	maxDevices = 1 << 20 // UBLK_MAX_UBLKS
	// deviceKiB is a bit more than kernel, server and worker take for a device of
	// depth 64 (table idle).
	deviceKiB = 256
)

// require refuses machines and options that can't work, with what to do about it.
func (b *bench) require() error {
	if err := b.o.check(); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("only root can make ublk devices: run it as root, as with sudo")
	}
	ids, err := ublk.Devices()
	if err != nil {
		return fmt.Errorf("the ublk driver is not loaded: %w: modprobe ublk_drv; csi-ublk probe says what this machine lacks", err)
	}
	n := b.mostDevices()
	if free := maxDevices - len(ids); n > free {
		return fmt.Errorf("%d devices are to be made, and the driver has %d numbers free: measure fewer (--devices, --others, --idle), or delete devices that nobody needs", n, free)
	}
	mem, err := readFields("/proc/meminfo")
	if err != nil {
		return err
	}
	if need := float64(n) * deviceKiB; need > mem["MemAvailable"] {
		return fmt.Errorf("%d devices need about %.0f MiB of memory, and %.0f are available: measure fewer (--devices, --others, --idle)", n, need/1024, mem["MemAvailable"]/1024)
	}
	if err := raiseFileLimit(uint64(2*n) + 1000); err != nil {
		return err
	}
	return b.requireForNode()
}

// mostDevices are there at a time.
func (b *bench) mostDevices() int {
	n := 0
	for table, list := range map[string][]int{
		TableKernel: {b.o.Devices}, TableLifecycle: {b.o.Volumes}, TableGrowth: b.o.Others, TableIdle: b.o.Idle, TableNode: b.o.Pods,
	} {
		if !b.wants(table) {
			continue
		}
		beside := 0
		if table == TableGrowth || table == TableIdle {
			beside = b.o.Volumes
		}
		n = max(n, slices.Max(list)+beside)
	}
	return n
}

func (b *bench) requireForNode() error {
	if !b.wants(TableNode) {
		return nil
	}
	programs := []string{"losetup"}
	for _, fsType := range b.o.FSTypes {
		programs = append(programs, "mkfs."+fsType)
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			return fmt.Errorf("the table node needs %s: %w: install util-linux, e2fsprogs and xfsprogs, or leave it out (--tables, --fs)", p, err)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(b.o.Dir, &st); err != nil {
		return fmt.Errorf("look at --dir %s: %w", b.o.Dir, err)
	}
	// Little of it is written, but inline volumes count with their full size.
	free, need := st.Bavail*uint64(st.Bsize)>>20, uint64(b.mostPods())*podVolumeBytes>>20
	if need > free {
		return fmt.Errorf("the table node needs %d MiB in --dir %s, and %d are free: choose another directory, or fewer --pods", need, b.o.Dir, free)
	}
	return nil
}

// raiseFileLimit lets this process have as many files open as it will.
func raiseFileLimit(want uint64) error {
	var has unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &has); err != nil {
		return fmt.Errorf("read limit of open files: %w", err)
	}
	if has.Cur >= want {
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: want, Max: max(has.Max, want)}); err != nil {
		return fmt.Errorf("raise limit of open files from %d to %d: %w: raise it before (ulimit -n), or measure fewer devices", has.Cur, want, err)
	}
	return nil
}

// check refuses options that mean nothing.
func (o *Options) check() error {
	for _, t := range o.Tables {
		if !slices.Contains(Tables, t) {
			return fmt.Errorf("table %q: must be of %s", t, strings.Join(Tables, ", "))
		}
	}
	if len(o.Tables) == 0 || o.Rounds < 1 || o.Devices < 1 || o.Volumes < 1 {
		return errors.New("tables, rounds, devices and volumes must be one or more")
	}
	for name, list := range map[string][]int{"threads": o.Threads, "in-flight": o.InFlight, "idle": o.Idle, "pods": o.Pods} {
		if len(list) == 0 || slices.Min(list) < 1 {
			return fmt.Errorf("%s: a list of numbers from 1 is needed", name)
		}
	}
	if len(o.Others) == 0 || o.Others[0] != 0 || !slices.IsSorted(o.Others) {
		return errors.New("others: an ascending list that begins with 0 is needed, which the others are compared with")
	}
	for _, most := range [][]int{o.Threads, o.InFlight} {
		if slices.Max(most) > commandsAtOnce {
			return fmt.Errorf("threads and in-flight: more than %d are not possible", commandsAtOnce)
		}
	}
	if len(o.FSTypes) == 0 {
		return errors.New("fs: a list of file systems is needed, as ext4,xfs")
	}
	return nil
}
