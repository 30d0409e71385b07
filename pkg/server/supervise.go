package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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

// A supervisor keeps a worker for each file system that has volumes, a standby for
// whichever needs one next, and the fences of those that are gone. A disk that is
// slow or hangs takes its own worker's buffers and threads, and its own volumes
// wait for it when that worker dies.
type supervisor struct {
	log      *slog.Logger
	fenceDir string
	options  worker.ProcessOptions
	fences   *fenceSet
	onLost   func(*generation)
	metrics  *metrics

	mu      sync.Mutex
	serving map[uint64]*generation // by file system
	standby *generation            // greeted, and told of no file yet; nil: on its way
	changed chan struct{}          // closed and replaced when either changes
	short   int                    // workers in a row that ended at once
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
		serving: make(map[uint64]*generation), changed: make(chan struct{}),
	}
}

// run keeps a standby until ctx is done. Then it ends all, and waits.
func (s *supervisor) run(ctx context.Context) {
	defer s.running.Wait()
	defer s.shutdown()
	for ctx.Err() == nil {
		s.mu.Lock()
		standby, changed, short := s.standby, s.changed, s.short
		s.mu.Unlock()
		if standby != nil {
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
	s.standby = g
	s.signal()
}

// signal runs with the mutex held.
func (s *supervisor) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// watch waits for the end of a worker and starts the recovery of its devices.
func (s *supervisor) watch(ctx context.Context, g *generation) {
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		<-g.proc.Lost()
		// From here on nothing is assigned to it.
		s.mu.Lock()
		if s.standby == g {
			s.standby = nil
		}
		s.mu.Unlock()
		// First the fence, then the rest: whoever sees the worker as lost must
		// find its fence among those to wait for.
		switch {
		case ctx.Err() != nil:
			g.fence.close() // the next server waits for it
		case g.fence.fileSystem == 0:
			// It was never told to open a file.
			if err := g.fence.remove(); err != nil {
				s.log.Error("fence not removed", "worker", g.name, "error", err)
			}
		default:
			s.fences.add(g.fence)
		}
		g.lost.Store(true)
		s.lived(time.Since(g.started))
		s.mu.Lock()
		if s.serving[g.fence.fileSystem] == g {
			delete(s.serving, g.fence.fileSystem)
		}
		s.signal()
		s.mu.Unlock()
		if ctx.Err() == nil {
			s.metrics.workerRestarts.Inc()
			s.onLost(g)
			<-g.proc.Exited()
			s.log.Error("worker lost", "worker", g.name, "pid", g.proc.Pid(), "after", time.Since(g.started).String(), "cause", fmt.Sprint(g.proc.ExitErr()))
		}
	}()
}

// active returns the worker that serves a file system's volumes. If there is none
// the standby becomes it; the call waits for that one if need be.
func (s *supervisor) active(ctx context.Context, fileSystem uint64) (*generation, error) {
	for {
		g, changed, err := s.take(fileSystem)
		if g != nil || err != nil {
			return g, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a worker: %w", context.Cause(ctx))
		}
	}
}

// take returns nil if the file system has no worker and there is no standby, and
// what is closed when that changes.
func (s *supervisor) take(fileSystem uint64) (*generation, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.serving[fileSystem]; g != nil || s.standby == nil {
		return g, s.changed, nil
	}
	g := s.standby
	// Before it can touch a file: a server that comes after must know whose.
	if err := g.fence.assign(fileSystem); err != nil {
		return nil, nil, err
	}
	g.name = g.fence.worker
	s.standby, s.serving[fileSystem] = nil, g
	s.signal()
	return g, nil, nil
}

// shutdown ends all workers: they end by themselves when their socket closes.
func (s *supervisor) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s.mu.Lock()
	list := slices.Collect(maps.Values(s.serving))
	if s.standby != nil {
		list = append(list, s.standby)
	}
	s.mu.Unlock()
	for _, g := range list {
		if err := g.proc.Shutdown(ctx); err != nil {
			s.log.Error("worker does not end", "worker", g.name, "error", err)
		}
	}
}
