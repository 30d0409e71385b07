//go:build soak && linux

package soak

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// slowDisk is a disk whose every write takes 20 ms.
func slowDisk(t *testing.T) string {
	t.Helper()
	f, err := os.CreateTemp("/var/tmp", "slow-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(f.Name()) })
	if err := f.Truncate(4 << 30); err != nil {
		t.Fatal(err)
	}
	f.Close()
	loop := run(t, "losetup", "--find", "--show", f.Name())
	t.Cleanup(func() { run(t, "losetup", "-d", loop) })
	const name = "csi-ublk-slow"
	run(t, "dmsetup", "create", name, "--table", "0 "+run(t, "blockdev", "--getsz", loop)+" delay "+loop+" 0 0 "+loop+" 0 20")
	t.Cleanup(func() { run(t, "dmsetup", "remove", "--retry", name) })
	// By its number: /dev/mapper is udev's, which need not be there.
	return "/dev/dm-" + run(t, "dmsetup", "info", "-c", "--noheadings", "-o", "minor", name)
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
