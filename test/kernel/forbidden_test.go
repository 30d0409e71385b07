//go:build ublk && linux

package kernel

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A server that can't run says what forbids it, by the name of the switch.
func TestForbiddenIOUringIsNamed(t *testing.T) {
	const path = "/proc/sys/kernel/io_uring_disabled"
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	set := func(v string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(v), 0); err != nil {
			t.Fatal(err)
		}
	}
	set("2")
	t.Cleanup(func() { set(string(before)) })
	for _, role := range []string{"server", "probe"} {
		args := map[string][]string{"server": {"--state-dir", t.TempDir(), "--socket", t.TempDir() + "/s", "--http-address", ""}}[role]
		out, err := exec.Command(binary(t), append([]string{role}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "sysctl kernel.io_uring_disabled=1") {
			t.Errorf("%s: %v: %s", role, err, out)
		}
	}
}
