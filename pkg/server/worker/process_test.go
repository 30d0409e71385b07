package worker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// The child of these tests is the test binary, run again: it speaks the protocol
// and has no device. What it does with a device is up to the id (see answerFor).
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "child-") {
		child(strings.TrimPrefix(os.Args[1], "child-"))
		return
	}
	goleak.VerifyTestMain(m)
}

const (
	deviceOK     = 1
	deviceBusy   = 2
	deviceSilent = 3
	deviceDeadly = 4
)

func child(kind string) {
	socket := os.NewFile(SocketFD, "server")
	version := uint32(protocolVersion)
	switch kind {
	case "mute":
		time.Sleep(time.Minute)
	case "old":
		version--
	case "dead":
		os.Exit(7)
	}
	h := hello{version: version, rings: 3, warnings: "one\ntwo"}
	if _, err := socket.Write(endFrame(appendHello(beginFrame(nil, frameHello), &h), 0)); err != nil {
		os.Exit(1)
	}
	t := &table{results: make(chan result, maxBatch)}
	go t.answer(socket)
	for {
		body, err := readFrame(socket, nil)
		if err != nil {
			return
		}
		list, err := decodeRequests(body)
		if err != nil {
			os.Exit(1)
		}
		for _, r := range list {
			switch r.device {
			case deviceOK:
				t.results <- result{seq: r.seq}
			case deviceBusy:
				t.results <- result{seq: r.seq, errno: uint32(syscall.EBUSY), text: "open: busy"}
			case deviceDeadly:
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
	}
}

const startLimit = 20 * time.Second

func startChild(t *testing.T, kind string) (*Process, error) {
	t.Helper()
	c, err := NewCounters(4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	if kind == "mute" {
		ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	}
	defer cancel()
	self, err := exec.LookPath(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(ctx, ProcessOptions{
		Command: []string{self, "child-" + kind}, FencePath: filepath.Join(t.TempDir(), "f"), Counters: c,
	})
	if err == nil {
		t.Cleanup(func() {
			if err := p.Shutdown(t.Context()); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
			<-p.Exited()
			<-p.Lost()
		})
	}
	return p, err
}

func TestCallsAreAnsweredAndErrorsKeepTheirErrno(t *testing.T) {
	p, err := startChild(t, "good")
	if err != nil {
		t.Fatal(err)
	}
	if p.Rings() != 3 || len(p.Warnings()) != 2 {
		t.Errorf("%d rings, warnings %q", p.Rings(), p.Warnings())
	}
	var wg sync.WaitGroup
	for range 2 * maxBatch {
		wg.Go(func() {
			if err := p.Attach(t.Context(), Attachment{Device: ublk.DeviceInfo{ID: deviceOK}, Path: "/p"}); err != nil {
				t.Error(err)
			}
			if err := p.Drain(t.Context(), deviceBusy); !errors.Is(err, syscall.EBUSY) || err.Error() != "open: busy" {
				t.Errorf("error %v, want the worker's, matching EBUSY", err)
			}
		})
	}
	wg.Wait()
	if err := p.Attach(t.Context(), Attachment{Path: strings.Repeat("x", maxTextBytes+1)}); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("a path that would be cut: %v", err)
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	p, err := startChild(t, "good")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Close(ctx, deviceSilent); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the deadline", err)
	}
	if len(p.waiting) != 0 {
		t.Errorf("%d calls are still waited for", len(p.waiting))
	}
}

func TestEveryCallOfADeadWorkerSaysSo(t *testing.T) {
	p, err := startChild(t, "good")
	if err != nil {
		t.Fatal(err)
	}
	early := make(chan error, 1)
	go func() { early <- p.Drain(t.Context(), deviceSilent) }()
	if err := p.Close(t.Context(), deviceDeadly); !errors.Is(err, ErrLost) {
		t.Errorf("the call that killed it: %v", err)
	}
	if err := <-early; !errors.Is(err, ErrLost) {
		t.Errorf("a call under way: %v", err)
	}
	<-p.Exited()
	if err := p.Close(t.Context(), deviceOK); !errors.Is(err, ErrLost) {
		t.Errorf("a call after its death: %v", err)
	}
}

func TestAChildThatDoesNotGreetIsNoWorker(t *testing.T) {
	for kind, says := range map[string]string{"mute": "deadline", "old": "replaced", "dead": "exit status 7"} {
		t.Run(kind, func(t *testing.T) {
			begin := time.Now()
			if _, err := startChild(t, kind); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("error %v, want one that says %q", err, says)
			}
			if d := time.Since(begin); d > startLimit/2 {
				t.Errorf("noticed after %v only", d)
			}
		})
	}
}
