//go:build rig

package testexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
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

// asRig makes this test binary a rig for one kernel: it runs its arguments in a guest, like vm exec.
const asRig = "RIG_TEST_KERNEL"

// markMiB is a memory size by which the guests of such a rig are told from others.
const markMiB = 517

func TestMain(m *testing.M) {
	v := os.Getenv(asRig)
	if v == "" {
		os.Exit(m.Run())
	}
	h, err := host.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	status, err := Run(context.Background(), h, Options{Kernel: kernel.Variant(v), MemoryMiB: markMiB, Stdout: os.Stdout, Stderr: os.Stderr}, os.Args[1:])
	if err != nil {
		log.Print(err)
	}
	os.Exit(status)
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

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
	var out, errs bytes.Buffer
	o := Options{Kernel: kernel.Current, Stdin: strings.NewReader("input"), Stdout: &out, Stderr: &errs}
	status, err := Run(t.Context(), newHost(t), o, []string{script(t, `echo "$1"; cat; echo err >&2; exit 7`), "argument"})
	if err != nil || status != 7 || out.String() != "argument\ninput" || errs.String() != "err\n" {
		t.Errorf("status %d, %q, %q, %v", status, out.String(), errs.String(), err)
	}
}

func TestGoTestWithCoverage(t *testing.T) {
	dir := t.TempDir()
	profile := filepath.Join(dir, "cover.out")
	cmd := exec.Command("go", "test", "-count=1", "-exec", self(t), "-coverprofile="+profile, "./testdata/covered")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "TEST_WORD=word", asRig+"=fixed")
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
	complain := `echo "<4>WARNING: made by the test" > /dev/kmsg`
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
	up := filepath.Join(dir, "up")
	cmd := exec.Command(self(t), script(t, "echo > "+up+"; sleep 600"))
	cmd.Env = append(os.Environ(), asRig+"=current")
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
	if n := guests(t); n == 0 {
		t.Fatal("no process of the guest is seen")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for range 100 {
		if guests(t) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("processes of the guest outlive the rig")
}

// guests counts the processes of such a rig's guests.
func guests(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	uml, qemu := fmt.Appendf(nil, "mem=%dM", markMiB), fmt.Appendf(nil, "\x00%dM\x00", markMiB)
	n := 0
	for _, f := range files {
		if b, _ := os.ReadFile(f); bytes.Contains(b, uml) || bytes.Contains(b, qemu) {
			n++
		}
	}
	return n
}
