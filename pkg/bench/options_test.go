package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// small are options that measure little of everything.
func small() Options {
	return Options{
		Tables: Tables, Devices: 6, Threads: []int{1, 3}, Volumes: 6, InFlight: []int{1, 4},
		Others: []int{0, 8}, Idle: []int{8}, Pods: []int{2}, FSTypes: []string{"ext4", "xfs"}, Rounds: 1,
	}
}

func TestOptionsThatMeanNothingAreRefusedByName(t *testing.T) {
	for says, change := range map[string]func(*Options){
		`table "kernels"`:                 func(o *Options) { o.Tables = []string{"kernels"} },
		"tables, rounds":                  func(o *Options) { o.Rounds = 0 },
		"threads":                         func(o *Options) { o.Threads = nil },
		"pods":                            func(o *Options) { o.Pods = []int{0} },
		"others: an ascending list":       func(o *Options) { o.Others = []int{1000} },
		"more than 64":                    func(o *Options) { o.InFlight = []int{65} },
		"fs":                              func(o *Options) { o.FSTypes = nil },
		"idle: a list of numbers from 1 ": func(o *Options) { o.Idle = []int{-1} },
	} {
		o := small()
		change(&o)
		if err := o.check(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	o := small()
	if err := o.check(); err != nil {
		t.Error(err)
	}
}

func TestMostDevicesAreThoseAtATime(t *testing.T) {
	o := small()
	o.Others, o.Idle = []int{0, 100}, []int{50}
	for tables, want := range map[string]int{"kernel": 6, "growth": 106, "idle": 56, "node": 2, "kernel growth idle": 106} {
		o.Tables = strings.Fields(tables)
		if got := (&bench{o: o}).mostDevices(); got != want {
			t.Errorf("%s: %d, want %d", tables, got, want)
		}
	}
}

func TestMachine(t *testing.T) {
	for text, want := range map[string]string{
		"vendor_id\t: User Mode Linux\n":       "User Mode Linux",
		"flags\t\t: fpu vme hypervisor lahf\n": "virtual machine",
		"flags\t\t: fpu vme lahf\n":            "no virtual machine seen",
	} {
		path := filepath.Join(t.TempDir(), "cpuinfo")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := machine(path); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestAKernelThatTakesNoMoreDevicesIsNamedWithTheRemedy(t *testing.T) {
	for errno, says := range map[syscall.Errno]string{syscall.EACCES: limitPath, syscall.ENOSPC: "--devices", syscall.ENOMEM: "more memory"} {
		err := explainAdd(&ublk.OpError{Op: "ADD_DEV", Device: -1, Err: errno})
		if !errors.Is(err, errno) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v", err)
		}
	}
}
