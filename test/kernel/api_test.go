//go:build ublk && linux

package kernel

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

func TestAttachAndDetachAreIdempotentAndAnswerAsPromised(t *testing.T) {
	n := newNode(t)
	_, err := n.client.Get(n.ctx(), "v")
	wantCode(t, "get of an unknown volume", err, codes.NotFound)
	wantCode(t, "detach of an unknown volume", n.client.Detach(n.ctx(), "v"), codes.OK)
	_, err = n.client.Attach(n.ctx(), "v", client.AttachOptions{Path: n.file("v")})
	wantCode(t, "attach without a file", err, codes.NotFound)
	_, err = n.client.Attach(n.ctx(), "v", client.AttachOptions{Path: "/etc/passwd"})
	wantCode(t, "attach of a file outside the pools", err, codes.InvalidArgument)
	_, err = n.client.Attach(n.ctx(), "../v", client.AttachOptions{Path: n.file("v")})
	wantCode(t, "attach of an id that is a path", err, codes.InvalidArgument)

	d := n.attach("v", 16<<20, client.AttachOptions{})
	if st, err := os.Stat(d.Path); err != nil || st.Mode()&os.ModeDevice == 0 || d.SizeBytes != 16<<20 || d.State != client.Live {
		t.Errorf("device %+v, %v, %v", d, st, err)
	}
	if again := n.attach("v", 16<<20, client.AttachOptions{}); again != d {
		t.Errorf("a second attach returns %+v, the first %+v", again, d)
	}
	_, err = n.client.Attach(n.ctx(), "v", client.AttachOptions{Path: n.file("v"), QueueDepth: 8})
	wantCode(t, "attach with other options", err, codes.InvalidArgument)

	f := openDisk(t, d.Path)
	err = n.client.Detach(n.ctx(), "v")
	wantCode(t, "detach of an open disk", err, codes.FailedPrecondition)
	if who := fmt.Sprintf("process %d", os.Getpid()); err == nil || !strings.Contains(err.Error(), who) {
		t.Errorf("%v: it does not name %s", err, who)
	}
	readDisk(t, f, 0, 4096) // and it still works
	f.Close()
	wantCode(t, "detach", n.client.Detach(n.ctx(), "v"), codes.OK)
	if _, err := os.Stat(d.Path); !os.IsNotExist(err) {
		t.Errorf("after a detach %s: %v", d.Path, err)
	}
	wantCode(t, "second detach", n.client.Detach(n.ctx(), "v"), codes.OK)
	if st, err := os.Stat(n.socket()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v", st.Mode(), err)
	}
}

func TestReadOnlyVolumesRefuseWrites(t *testing.T) {
	n := newNode(t)
	d := n.attach("v", 16<<20, client.AttachOptions{ReadOnly: true})
	f, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err == nil {
		_, err = f.Write(make([]byte, 4096))
		f.Close()
	}
	if err == nil {
		t.Error("a read-only disk took a write")
	}
}

func TestManyCyclesLeaveNothing(t *testing.T) {
	n := newNode(t)
	n.attach("warm", 4<<20, client.AttachOptions{}) // the worker's first descriptors
	worker := n.worker()
	before := [2]int{descriptors(t, n.server.Process.Pid), descriptors(t, worker)}
	var wg sync.WaitGroup
	const goroutines, cycles = 8, 100
	for g := range goroutines {
		wg.Go(func() {
			for c := g; c < cycles; c += goroutines {
				id := fmt.Sprintf("v%d", g)
				d, err := n.client.Attach(n.ctx(), id, client.AttachOptions{Path: n.emptyFile(id)})
				if err == nil {
					_, err = os.Stat(d.Path)
				}
				if err == nil {
					err = n.client.Detach(n.ctx(), id)
				}
				if err != nil {
					t.Errorf("cycle %d: %v", c, err)
					return
				}
			}
		})
	}
	wg.Wait()
	n.eventually("only one device to be left", func() error {
		if list := devices(t); len(list) != 1 {
			return fmt.Errorf("there are %v", list)
		}
		return nil
	})
	// The connection and a look at /proc may be in progress: a leak is one a cycle.
	after := [2]int{descriptors(t, n.server.Process.Pid), descriptors(t, worker)}
	for i, who := range []string{"server", "worker"} {
		if after[i] > before[i]+5 {
			t.Errorf("the %s has %d descriptors, %d before the cycles", who, after[i], before[i])
		}
	}
}

func (n *node) emptyFile(id string) string {
	path := n.file(id)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		n.t.Error(err)
	}
	if err := os.Truncate(path, 4<<20); err != nil {
		n.t.Error(err)
	}
	return path
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Flags of include/linux/sched.h that PR_SET_IO_FLUSHER sets.
const ioFlusher = 0x00080000 | 0x00100000

func TestEveryTaskOfAWorkerIsAnIOFlusher(t *testing.T) {
	n := newNode(t)
	d := n.attach("v", 64<<20, client.AttachOptions{})
	startLoad(t, d.Path, "16m", "--fsync=16").wait(t) // so that the kernel's own threads of the rings are there
	pid := n.worker()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) < 3 {
		t.Fatalf("tasks %v, %v", tasks, err)
	}
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // a thread that has ended
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		flags, err := strconv.ParseUint(strings.Fields(rest)[6], 10, 64)
		if err != nil || flags&ioFlusher != ioFlusher {
			t.Errorf("%s: flags %#x, %v", path, flags, err)
		}
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid)); err != nil || strings.TrimSpace(string(b)) != "-999" {
		t.Errorf("oom_score_adj %q, %v", b, err)
	}
}

func TestMetricsTellOfVolumesAndPhases(t *testing.T) {
	n := newNode(t)
	d := n.attach("v", 16<<20, client.AttachOptions{})
	writeDisk(t, openDisk(t, d.Path), 0, make([]byte, 8192))
	for path, wants := range map[string][]string{
		"/healthz": {"ok"},
		"/readyz":  {"ok"},
		"/metrics": {
			`csi_ublk_volume_bytes_total{operation="write",volume="v"} 8192`,
			`csi_ublk_server_devices{state="live"} 1`,
			`",op="attach",phase="start"} 1`,
			`csi_ublk_server_wedged 0`,
		},
	} {
		r, err := http.Get("http://" + httpAddress + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %v", path, r.Status, err)
		}
		for _, w := range wants {
			if !strings.Contains(string(b), w) {
				t.Errorf("%s lacks %q", path, w)
			}
		}
	}
}
