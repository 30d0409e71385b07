//go:build ublk && linux

package server

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
)

// The workers of these tests are the test binary, run again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		var o worker.Options
		f := flag.NewFlagSet("worker", flag.ExitOnError)
		f.StringVar(&o.FencePath, "fence", "", "")
		f.IntVar(&o.Rings, "rings", 0, "")
		if err := f.Parse(os.Args[2:]); err != nil {
			os.Exit(2)
		}
		o.Socket = os.NewFile(worker.SocketFD, "server")
		o.Counters = os.NewFile(worker.CountersFD, "counters")
		if err := worker.Run(o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// startServer runs a server in this process, with a pool directory "p".
func startServer(t *testing.T, change func(*Server)) *Server {
	t.Helper()
	state, err := os.MkdirTemp("/var/tmp", "csi-ublk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	o := Options{StateDir: state, Socket: filepath.Join(state, "s"), Logger: slog.New(slog.NewTextHandler(testLog{t}, nil))}.withDefaults()
	for _, d := range []string{"pools/p", "server/fence"} {
		if err := os.MkdirAll(filepath.Join(state, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s, err := open(o, filepath.Join(state, "server"))
	if err != nil {
		t.Fatal(err)
	}
	change(s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		s.close()
	})
	waitFor(t, "the server to be ready", s.adopted.Load)
	return s
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	fmt.Fprintf(os.Stderr, "    %s", b)
	return len(b), nil
}

func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}
