//go:build rig

package testexec

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
)

// newHost is the real cache: the first run builds a kernel.
func newHost(t *testing.T) *host.Host {
	t.Helper()
	h, err := host.New(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// script writes a program for the guest.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.sh")
	if err := os.WriteFile(path, []byte("#!/bin/bash\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, o Options, args ...string) (status int, out string, err error) {
	t.Helper()
	var both bytes.Buffer
	o.Stdout, o.Stderr = &both, &both
	if o.Kernel == "" {
		o.Kernel = kernel.Current
	}
	status, err = Run(t.Context(), newHost(t), o, args)
	return status, both.String(), err
}

func TestOutputAndStatusComeBack(t *testing.T) {
	status, out, err := run(t, Options{}, script(t, `echo "in $1"; echo err >&2; exit 7`), "guest")
	if err != nil || status != 7 || out != "in guest\nerr\n" {
		t.Errorf("status %d, %q, %v", status, out, err)
	}
}

func TestGoTestWithCoverage(t *testing.T) {
	dir := t.TempDir()
	vm := filepath.Join(dir, "vm")
	if out, err := exec.Command("go", "build", "-o", vm, "..").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	profile := filepath.Join(dir, "cover.out")
	cmd := exec.Command("go", "test", "-count=1", "-exec", vm+" exec --kernel fixed --", "-coverprofile="+profile, "./testdata/covered")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "TEST_WORD=word")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "coverage: 66.7% of statements") {
		t.Errorf("%v\n%s", err, out)
	}
	if b, err := os.ReadFile(profile); err != nil || !strings.Contains(string(b), "covered.go:") {
		t.Errorf("profile: %v\n%s", err, b)
	}
}

func TestPanicIsReportedAsSuch(t *testing.T) {
	status, _, err := run(t, Options{}, script(t, `echo c > /proc/sysrq-trigger; sleep 60`))
	if status != StatusRig || !errors.Is(err, guest.ErrPanic) {
		t.Fatalf("status %d, %v; want a panic", status, err)
	}
	if !strings.Contains(err.Error(), "Call Trace") && !strings.Contains(err.Error(), "sysrq triggered crash") {
		t.Errorf("the console's tail is missing: %v", err)
	}
}

func TestTimeLimitHolds(t *testing.T) {
	start := time.Now()
	status, out, err := run(t, Options{Limit: 6 * time.Second}, script(t, `echo begun; sleep 600`))
	if status != StatusLimit || err == nil || out != "begun\n" {
		t.Errorf("status %d, %q, %v; want the time limit", status, out, err)
	}
	if spent := time.Since(start); spent > 40*time.Second {
		t.Errorf("took %s", spent)
	}
	// The report of blocked tasks, which sleeping is not, has its heading at least.
	if err != nil && !strings.Contains(err.Error(), "sysrq: Show Blocked State") {
		t.Errorf("no report of blocked tasks: %v", err)
	}
}

func TestKernelComplaintFailsAPass(t *testing.T) {
	complain := `echo "BUG: made by the test" > /dev/kmsg`
	status, out, err := run(t, Options{}, script(t, complain))
	if err != nil || status != 1 || !strings.Contains(out, "[guest kernel]") {
		t.Errorf("status %d, %q, %v; want a failure", status, out, err)
	}
	if status, _, err := run(t, Options{ShowComplaints: true}, script(t, complain)); err != nil || status != 0 {
		t.Errorf("only shown: status %d, %v", status, err)
	}
}

func TestSeveralAtOnce(t *testing.T) {
	program := script(t, `mkfs.xfs -q /dev/data && mount /dev/data /mnt && echo "$1" > /mnt/f && cat /mnt/f`)
	var wg sync.WaitGroup
	for _, word := range []string{"one", "two", "three"} {
		wg.Go(func() {
			status, out, err := run(t, Options{MemoryMiB: 512}, program, word)
			if err != nil || status != 0 || out != word+"\n" {
				t.Errorf("%s: status %d, %q, %v", word, status, out, err)
			}
		})
	}
	wg.Wait()
}

func TestMissingProgram(t *testing.T) {
	if status, _, err := run(t, Options{}, "/no/such/program"); status != StatusRig || err == nil {
		t.Errorf("status %d, %v", status, err)
	}
}

func TestNothingIsLeftWhenTheRigIsKilled(t *testing.T) {
	dir := t.TempDir()
	vm := filepath.Join(dir, "vm")
	if out, err := exec.Command("go", "build", "-o", vm, "..").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	up := filepath.Join(dir, "up")
	cmd := exec.Command(vm, "exec", "--memory", "517", "--", script(t, "echo > "+up+"; sleep 600")) // A size that marks the guest.
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, err := os.Stat(up); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the guest does not come up")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if n := guests(t, "517M"); n == 0 {
		t.Fatal("no process of the guest is seen")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for range 100 {
		if guests(t, "517M") == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("processes of the guest outlive the rig")
}

// guests counts processes whose command line has the mark.
func guests(t *testing.T, mark string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		if b, _ := os.ReadFile(f); bytes.Contains(b, []byte("mem="+mark)) || bytes.Contains(b, []byte("\x00"+mark+"\x00")) {
			n++
		}
	}
	return n
}
