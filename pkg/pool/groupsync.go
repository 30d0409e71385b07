package pool

import "sync"

// A groupSync makes one sync serve all who need one: those who come while a sync
// runs share the next, which begins after they came. Two hundred volumes that are
// made at once so cost a few syncs of their directory.
type groupSync struct {
	sync func() error // what is shared

	mu   sync.Mutex
	next *syncRound // not begun; nil if nobody waits
	busy bool
}

type syncRound struct {
	done chan struct{}
	err  error
}

// Sync returns when a sync that began after the call is over.
func (g *groupSync) Sync() error {
	g.mu.Lock()
	if g.next == nil {
		g.next = &syncRound{done: make(chan struct{})}
	}
	r := g.next
	if !g.busy {
		g.busy = true
		go g.run()
	}
	g.mu.Unlock()
	<-r.done
	return r.err
}

func (g *groupSync) run() {
	for {
		g.mu.Lock()
		r := g.next
		g.next = nil
		g.busy = r != nil
		g.mu.Unlock()
		if r == nil {
			return
		}
		r.err = g.sync()
		close(r.done)
	}
}
