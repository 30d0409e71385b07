//go:build ublk && linux

package kernel

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// readers read from a disk, more than one at a time, until the test's end.
func readers(t *testing.T, disk string) *atomic.Int64 {
	t.Helper()
	var reads atomic.Int64
	var stop atomic.Bool
	var all sync.WaitGroup
	for i := range 4 {
		f, b := openDisk(t, disk), aligned(4096)
		all.Go(func() {
			for !stop.Load() {
				if _, err := f.ReadAt(b, int64(i)<<20); err != nil {
					t.Error(err)
					return
				}
				reads.Add(1)
			}
		})
	}
	t.Cleanup(func() {
		stop.Store(true)
		all.Wait()
	})
	return &reads
}

func TestLimitsOutliveWorkerAndServer(t *testing.T) {
	n := newNode(t)
	limits := client.Limits{ReadIOPS: 300, Burst: time.Second}
	d := n.attach("v", 16<<20, client.AttachOptions{Limits: limits})
	if d.Limits != limits {
		t.Errorf("limits %+v, want %+v", d.Limits, limits)
	}
	reads := readers(t, d.Path)
	near := func(when string, want float64) {
		t.Helper()
		n.live("v")
		time.Sleep(time.Second) // what was saved up meanwhile is gone
		begin, before := time.Now(), reads.Load()
		time.Sleep(3 * time.Second)
		got := float64(reads.Load()-before) / time.Since(begin).Seconds()
		t.Logf("%s: %.0f reads a second, limit %.0f", when, got, want)
		if got < 0.9*want || got > 1.1*want {
			t.Errorf("%s: %.0f reads a second, want %.0f within 10 %%", when, got, want)
		}
	}
	near("as attached", 300)
	if err := syscall.Kill(n.worker(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	near("after the worker's death", 300)

	limits.ReadIOPS = 150
	if err := n.client.SetLimits(n.ctx(), "v", limits); err != nil {
		t.Fatal(err)
	}
	near("changed", 150)
	n.kill()
	n.start()
	near("after the server's death", 150)

	limits = client.Limits{IOPS: 400, Burst: time.Second}
	n.attach("v", 16<<20, client.AttachOptions{Limits: limits})
	near("by another attach", 400)
	d, err := n.client.Get(n.ctx(), "v")
	if err != nil || d.Limits != limits || d.Throttled < time.Second {
		t.Errorf("device %+v, %v", d, err)
	}
	metric := metricOf(t, `csi_ublk_volume_throttled_seconds_total{volume="v"}`)
	if metric < 1 {
		t.Errorf("throttled for %v seconds", metric)
	}

	n.attach("v", 16<<20, client.AttachOptions{})
	before := reads.Load()
	time.Sleep(time.Second)
	if n := reads.Load() - before; n < 500 {
		t.Errorf("%d reads in a second without limits", n)
	}
}

func metricOf(t *testing.T, name string) (v float64) {
	t.Helper()
	r, err := http.Get("http://" + httpAddress + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// The kernel may look for partitions when the disk appears: those reads are not the user's.
func TestATinyLimitStopsNoAttach(t *testing.T) {
	n := newNode(t)
	begin := time.Now()
	d := n.attach("v", 16<<20, client.AttachOptions{Limits: client.Limits{ReadBytes: 1}})
	if took := time.Since(begin); took > 10*time.Second || d.Limits.ReadBytes != 1 {
		t.Errorf("attached within %v, limits %+v", took, d.Limits)
	}
}
