//go:build ublk && linux

package kernel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// loads puts verified I/O on a raw disk, an ext4 and an XFS, and returns a check
// that all go on and an end.
func loads(t *testing.T, n *node, seconds int) (check func(when string), end func()) {
	t.Helper()
	// Longer than the faults: end finds whether it was all right to the last.
	runtime := []string{"--time_based", fmt.Sprintf("--runtime=%d", seconds)}
	list := map[string]*load{"raw": startLoad(t, n.attach("raw", 64<<20, client.AttachOptions{}).Path, "64m", runtime...)}
	var unmounts []func()
	for _, kind := range []string{"ext4", "xfs"} {
		dir, unmount := n.mountedDisk(n.attach(kind, 320<<20, client.AttachOptions{}).Path, kind)
		unmounts = append(unmounts, unmount)
		list[kind] = startLoad(t, filepath.Join(dir, "f"), "32m", append(runtime, "--fsync=128")...)
	}
	check = func(when string) {
		t.Helper()
		for name, l := range list {
			if l.over() {
				t.Errorf("%s: the load on %s ended", when, name)
				l.wait(t)
				t.FailNow()
			}
		}
	}
	end = func() {
		t.Helper()
		for _, l := range list {
			l.cmd.Process.Signal(syscall.SIGINT) // fio ends its round and reports
		}
		for name, l := range list {
			if err := <-l.done; err != nil && l.cmd.ProcessState.ExitCode() != 128 {
				t.Errorf("load on %s: %v", name, err)
			}
			if out := l.out.Bytes(); bytes.Contains(out, []byte("verify")) || !bytes.Contains(out, []byte("err= 0")) {
				t.Errorf("load on %s:\n%s", name, out)
			}
		}
		for _, u := range unmounts {
			u()
		}
	}
	return check, end
}

func TestIOGoesOnWhenWorkersAreKilled(t *testing.T) {
	kills := 50
	if testing.Short() {
		kills = 10
	}
	n := newNode(t)
	check, end := loads(t, n, 600)
	for i := range kills {
		time.Sleep(time.Duration(100+rand.IntN(300)) * time.Millisecond)
		check(fmt.Sprintf("before kill %d", i))
		pid := n.worker()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.eventually("another worker", func() error {
			if now := n.worker(); now == pid {
				return fmt.Errorf("still %d", pid)
			}
			return nil
		})
		for _, id := range []string{"raw", "ext4", "xfs"} {
			n.live(id)
		}
	}
	check("at the end")
	end()
}

func TestIOGoesOnWhenTheServerIsKilledOrStopped(t *testing.T) {
	n := newNode(t)
	check, end := loads(t, n, 600)
	before, err := n.client.List(n.ctx())
	if err != nil {
		t.Fatal(err)
	}
	for i, fault := range []func(){n.kill, n.stop, n.kill} {
		time.Sleep(300 * time.Millisecond)
		fault()
		check(fmt.Sprintf("after fault %d", i))
		n.start()
		for _, d := range before {
			n.live(d.VolumeID)
		}
		after, err := n.client.List(n.ctx())
		if err != nil {
			t.Fatal(err)
		}
		for j := range after {
			if after[j] != before[j] {
				t.Errorf("after fault %d the server has %+v, before %+v", i, after[j], before[j])
			}
		}
	}
	time.Sleep(300 * time.Millisecond)
	check("at the end")
	end()
}
