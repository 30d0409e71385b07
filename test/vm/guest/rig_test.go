//go:build rig

package guest

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/root"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// boot starts a guest of the current kernel.
func boot(t *testing.T, s Spec) *Guest {
	t.Helper()
	h, err := host.New(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if s.Accel, err = Choose(t.Context(), h, "", kernel.Current); err != nil {
		t.Fatal(err)
	}
	if s.Kernel, err = kernel.Get(t.Context(), h, kernel.Current, s.Accel.Machine()); err != nil {
		t.Fatal(err)
	}
	if s.Root, err = root.Build(t.Context(), h, root.Spec{}); err != nil {
		t.Fatal(err)
	}
	g, err := Start(t.Context(), h, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func shell(t *testing.T, g *Guest, script string) string {
	t.Helper()
	out, err := g.Shell(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func TestPowerCutKeepsWhatWasSynced(t *testing.T) {
	dir := t.TempDir()
	g := boot(t, Spec{Dir: dir})
	shell(t, g, `mkfs.ext4 -q /dev/data && mount /dev/data /mnt && echo synced > /mnt/a && echo on-root > /etc/mark && sync && echo lost > /mnt/b`)
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(g.Err(), ErrKilled) {
		t.Errorf("Err = %v, want ErrKilled", g.Err())
	}
	g = boot(t, Spec{Dir: dir})
	if got := shell(t, g, `mount /dev/data /mnt && cat /mnt/a /etc/mark`); got != "synced\non-root" {
		t.Errorf("after the power cut: %q", got)
	}
}

func TestHangOfTheMachineIsSeen(t *testing.T) {
	g := boot(t, Spec{SilentAfter: 3 * time.Second})
	// Not by Pause, which announces that the guest will be silent.
	if err := g.proc.signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, err := g.Shell(t.Context(), "true")
	if !errors.Is(err, ErrHung) {
		t.Errorf("Shell = %v, want ErrHung", err)
	}
}

func TestPauseIsNoHang(t *testing.T) {
	g := boot(t, Spec{SilentAfter: 2 * time.Second})
	if err := g.Pause(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, g, "echo alive"); got != "alive" {
		t.Errorf("after the pause: %q", got)
	}
}

func TestCommandsRunSideBySide(t *testing.T) {
	g := boot(t, Spec{})
	var wg sync.WaitGroup
	for _, word := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			out, err := g.Shell(t.Context(), "for i in $(seq 200); do echo "+word+"; done; sleep 0.2")
			if err != nil || out != strings.Repeat(word+"\n", 200) {
				t.Errorf("%s: %d bytes, %v", word, len(out), err)
			}
		})
	}
	wg.Wait()
}

func TestInputReachesTheCommand(t *testing.T) {
	g := boot(t, Spec{})
	text := strings.Repeat("0123456789abcde\n", 8192)
	var out strings.Builder
	status, err := g.Run(t.Context(), Cmd{Args: []string{"md5sum"}, Stdin: strings.NewReader(text), Stdout: &out})
	if err != nil || status != 0 {
		t.Fatalf("status %d, %v", status, err)
	}
	want := shell(t, g, `for i in $(seq 8192); do echo 0123456789abcde; done | md5sum`)
	if strings.TrimSpace(out.String()) != want {
		t.Errorf("md5sum of the input: %q, want %q", out.String(), want)
	}
}

func TestCommandOfACanceledContextIsKilled(t *testing.T) {
	g := boot(t, Spec{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := g.Shell(ctx, "sleep 611"); err == nil {
		t.Error("no error")
	}
	if got := shell(t, g, `pgrep -f "sleep 61[1]" || echo none`); got != "none" {
		t.Errorf("still runs: %s", got)
	}
}

func TestOpeningADeviceLoadsItsDriver(t *testing.T) {
	g := boot(t, Spec{})
	if got := shell(t, g, `lsmod | grep -c '^tun ' || true; exec 3<> /dev/net/tun; lsmod | grep -c '^tun '`); got != "0\n1" {
		t.Errorf("before and after opening it the driver is loaded %q times", got)
	}
}

func TestStatusOfASignal(t *testing.T) {
	g := boot(t, Spec{NoUblk: true})
	status, err := g.Run(t.Context(), Cmd{Args: []string{"bash", "-c", "kill -TERM $$"}})
	if err != nil || status != 128+15 {
		t.Errorf("status %d, %v", status, err)
	}
	if status, err := g.Run(t.Context(), Cmd{Args: []string{"no-such-program"}}); err == nil || status != 127 {
		t.Errorf("a missing program: status %d, %v", status, err)
	}
	if err := g.PowerOff(20 * time.Second); err != nil {
		t.Error(err)
	}
}
