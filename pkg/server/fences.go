package server

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A fenceSet holds the fences of dead workers whose file I/O may not be over.
// While there is one, no device is started or recovered whose file is in the file
// system that the worker served: which of its files have writes under way is not
// known.
type fenceSet struct {
	log     *slog.Logger
	metrics *metrics

	mu      sync.Mutex
	pending map[*fence]struct{}
	changed chan struct{} // closed and replaced when one is over
	waiters sync.WaitGroup
	closed  context.CancelFunc
	ctx     context.Context
}

func newFenceSet(log *slog.Logger, m *metrics) *fenceSet {
	s := &fenceSet{log: log, metrics: m, pending: make(map[*fence]struct{}), changed: make(chan struct{})}
	s.ctx, s.closed = context.WithCancel(context.Background())
	return s
}

// slowFence is when a fence that is still up is worth a line in the log.
const slowFence = 5 * time.Second

// add puts up the fence of a worker that is dead, or about to be. It comes
// down, and its pipe is removed, when the worker's I/O is over.
func (s *fenceSet) add(f *fence) {
	s.mu.Lock()
	s.pending[f] = struct{}{}
	s.mu.Unlock()
	s.metrics.fences.Inc()
	s.waiters.Add(1)
	go func() {
		defer s.waiters.Done()
		start := time.Now()
		slow := time.AfterFunc(slowFence, func() {
			s.log.Warn("recovery waits for the file I/O of a dead worker", "worker", f.worker)
		})
		err := f.wait(s.ctx)
		slow.Stop()
		if err != nil {
			// Either the server ends, and the next one waits; or the pipe can't
			// be read, and then nothing proves that the I/O is over.
			if s.ctx.Err() == nil {
				s.log.Error("fence stays up", "worker", f.worker, "error", err)
			}
			f.close()
			return
		}
		s.metrics.fences.Dec()
		s.metrics.fenceWait.Observe(time.Since(start).Seconds())
		if err := f.remove(); err != nil {
			s.log.Error("fence not removed", "worker", f.worker, "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.pending, f)
		close(s.changed)
		s.changed = make(chan struct{})
	}()
}

// wait returns nil when no fence of the file system is up, and none of which it is not
// known what it is of.
func (s *fenceSet) wait(ctx context.Context, fileSystem uint64) error {
	for {
		up, changed := s.up(fileSystem)
		if !up {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *fenceSet) up(fileSystem uint64) (up bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.pending {
		if f.fileSystem == fileSystem || f.fileSystem == 0 {
			return true, s.changed
		}
	}
	return false, s.changed
}

// close stops waiting. Fences that are up keep their pipes for the next server.
func (s *fenceSet) close() {
	s.closed()
	s.waiters.Wait()
}
