//go:build soak && linux

package soak

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// autopsy tells where everything stands after a failure: the kernel's side of tasks that
// can't be interrupted, the goroutines of server and plugin, what they complained of, and
// the ends of their logs.
func (n *node) autopsy(t *testing.T) {
	if !t.Failed() {
		return
	}
	messages, _ := exec.Command("dmesg").CombinedOutput()
	t.Logf("the kernel's last messages:\n%s", messages[max(0, len(messages)-8000):])
	t.Logf("tasks that wait in the kernel:\n%s", uninterruptible())
	for _, p := range []*process{&n.server, &n.plugin} {
		if info, err := os.Stat(p.log); err == nil {
			_ = syscall.Kill(p.pid(), syscall.SIGQUIT) // the Go runtime's dump, which ends it
			time.Sleep(2 * time.Second)
			b, _ := os.ReadFile(p.log)
			t.Logf("complaints of the %s:\n%s", p.name, complaints(b))
			t.Logf("the log of the %s before its end, and its goroutines:\n%s", p.name, b[max(0, int(info.Size())-8000):])
		}
	}
}

// complaints are the last 300 lines of a log that are warnings or errors, or of no level:
// a worker's last words. Without an API server here, the plugin's reconcilers always fail.
func complaints(log []byte) string {
	lines := slices.DeleteFunc(strings.Split(string(log), "\n"), func(line string) bool {
		return strings.Contains(line, `"level":"INFO"`) || strings.Contains(line, "reconcilers stopped")
	})
	return strings.Join(lines[max(0, len(lines)-300):], "\n")
}

func uninterruptible() string {
	var all strings.Builder
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	for _, task := range tasks {
		status, err := os.ReadFile(task + "/status")
		if err != nil || !strings.Contains(string(status), "State:\tD") {
			continue
		}
		name, _, _ := strings.Cut(string(status), "\n")
		where, _ := os.ReadFile(task + "/wchan")
		stack, _ := os.ReadFile(task + "/stack")
		fmt.Fprintf(&all, "%s %s in %s\n%s", task, name, where, stack)
	}
	return all.String()
}
