package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
)

// A generation is one worker process: its handle, its fence, and whether it is
// still there.
type generation struct {
	name    string
	proc    *worker.Process
	fence   *fence
	started time.Time
	lost    atomic.Bool
}

func (g *generation) isLost() bool { return g.lost.Load() }

// A supervisor keeps one worker active and one ready to take over, and the
// fences of those that are gone.
type supervisor struct {
	log      *slog.Logger
	fenceDir string
	options  worker.ProcessOptions
	fences   *fenceSet
	onLost   func(*generation)
	metrics  *metrics

	mu      sync.Mutex
	ready   []*generation // the first is active
	changed chan struct{} // closed and replaced when ready changes
	short   int           // workers in a row that ended at once
	running sync.WaitGroup
}

// spawnLimit bounds how long a worker may take until it greets. A machine without
// a free CPU must get there, too: to kill and start anew would only take longer.
const spawnLimit = time.Minute

// A worker that ends within shortLife counts as failing at once. After a few of
// those in a row the next start waits, longer each time; single crashes are
// replaced without a pause.
const (
	shortLife  = time.Second
	freeStarts = 3
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// pause is how long to wait before the next start after so many short lives.
func pause(short int) time.Duration {
	if short <= freeStarts {
		return 0
	}
	return min(lastPause, firstPause<<min(short-freeStarts-1, 10))
}

func newSupervisor(log *slog.Logger, fenceDir string, o worker.ProcessOptions, m *metrics, onLost func(*generation)) *supervisor {
	return &supervisor{
		log: log, fenceDir: fenceDir, options: o, fences: newFenceSet(log, m), metrics: m, onLost: onLost,
		changed: make(chan struct{}),
	}
}

// run keeps two workers ready until ctx is done. Then it ends both, and waits.
func (s *supervisor) run(ctx context.Context) {
	defer s.running.Wait()
	defer s.shutdown()
	for ctx.Err() == nil {
		s.mu.Lock()
		n, changed, short := len(s.ready), s.changed, s.short
		s.mu.Unlock()
		if n >= 2 {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if p := pause(short); p > 0 {
			s.log.Error("workers end as soon as they start", "times", short, "pause", p.String())
			select {
			case <-time.After(p):
			case <-ctx.Done():
				continue
			}
		}
		g, err := s.spawn(ctx)
		if err == nil {
			s.add(g)
			s.watch(ctx, g)
		} else if ctx.Err() == nil {
			s.log.Error("worker not started", "error", err)
			s.lived(0)
		}
	}
}

// lived counts short lives in a row.
func (s *supervisor) lived(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d >= shortLife {
		s.short = 0
	} else {
		s.short++
	}
}

func (s *supervisor) spawn(ctx context.Context) (*generation, error) {
	ctx, cancel := context.WithTimeout(ctx, spawnLimit)
	defer cancel()
	id := make([]byte, 6)
	rand.Read(id)
	g := &generation{name: "w-" + hex.EncodeToString(id), started: time.Now()}
	var err error
	if g.fence, err = makeFence(s.fenceDir, g.name); err != nil {
		return nil, err
	}
	o := s.options
	o.FencePath = g.fence.path
	if g.proc, err = worker.Start(ctx, o); err != nil {
		// It was never told to open a file, so there is no I/O to wait for.
		if err := g.fence.remove(); err != nil {
			s.log.Error("fence not removed", "worker", g.name, "error", err)
		}
		return nil, err
	}
	s.log.Info("worker ready", "worker", g.name, "pid", g.proc.Pid(), "rings", g.proc.Rings())
	for _, w := range g.proc.Warnings() {
		s.log.Warn("worker lacks a privilege", "worker", g.name, "cause", w)
	}
	return g, nil
}

func (s *supervisor) add(g *generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, g)
	close(s.changed)
	s.changed = make(chan struct{})
}

// watch waits for the end of a worker and starts the recovery of its devices.
func (s *supervisor) watch(ctx context.Context, g *generation) {
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		<-g.proc.Lost()
		// First the fence, then the rest: whoever sees the worker as lost must
		// find its fence among those to wait for.
		if ctx.Err() == nil {
			s.fences.add(g.fence)
		} else {
			g.fence.close() // the next server waits for it
		}
		g.lost.Store(true)
		s.lived(time.Since(g.started))
		s.mu.Lock()
		for i, r := range s.ready {
			if r == g {
				s.ready = append(s.ready[:i:i], s.ready[i+1:]...)
			}
		}
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
		if ctx.Err() == nil {
			s.metrics.workerRestarts.Inc()
			s.onLost(g)
			<-g.proc.Exited()
			s.log.Error("worker lost", "worker", g.name, "pid", g.proc.Pid(), "after", time.Since(g.started).String(), "cause", fmt.Sprint(g.proc.ExitErr()))
		}
	}()
}

// active returns the worker that serves devices, waiting for one if there is
// none.
func (s *supervisor) active(ctx context.Context) (*generation, error) {
	for {
		s.mu.Lock()
		changed := s.changed
		var g *generation
		if len(s.ready) > 0 {
			g = s.ready[0]
		}
		s.mu.Unlock()
		if g != nil {
			return g, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a worker: %w", context.Cause(ctx))
		}
	}
}

// shutdown ends all workers: they end by themselves when their socket closes.
func (s *supervisor) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s.mu.Lock()
	list := s.ready
	s.mu.Unlock()
	for _, g := range list {
		if err := g.proc.Shutdown(ctx); err != nil {
			s.log.Error("worker does not end", "worker", g.name, "error", err)
		}
	}
}
