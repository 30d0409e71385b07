package server

import (
	"context"
	"sync"
)

// turns lets a bounded number go at once, in the order in which they were
// taken. golang.org/x/sync/semaphore is first come first served among those who
// wait; who comes first is up to the scheduler there, and busy volumes must go
// first.
type turns struct {
	mu    sync.Mutex
	free  int
	queue []*turn
}

type turn struct {
	turns   *turns
	granted chan struct{}
	over    bool // guarded by turns.mu
}

func newTurns(n int) *turns { return &turns{free: n} }

// take puts the caller in the queue.
func (t *turns) take() *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := &turn{turns: t, granted: make(chan struct{})}
	t.queue = append(t.queue, u)
	t.grant()
	return u
}

// grant runs with the mutex held.
func (t *turns) grant() {
	for t.free > 0 && len(t.queue) > 0 {
		u := t.queue[0]
		t.queue = t.queue[1:]
		if u.over {
			continue
		}
		t.free--
		close(u.granted)
	}
}

// wait returns nil when it is this one's turn.
func (u *turn) wait(ctx context.Context) error {
	select {
	case <-u.granted:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// done ends a turn, also one that was not waited for. It may be called again.
func (u *turn) done() {
	u.turns.mu.Lock()
	defer u.turns.mu.Unlock()
	if u.over {
		return
	}
	u.over = true
	select {
	case <-u.granted:
		u.turns.free++
	default:
	}
	u.turns.grant()
}
