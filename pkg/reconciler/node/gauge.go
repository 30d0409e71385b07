package node

import (
	"sync"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// A gauge has pools measure what others keep on their file systems, in the background:
// it takes time in proportion to the volumes, and a status must not wait for it. A pool
// measures itself when it is opened.
type gauge struct {
	every time.Duration

	mu    sync.Mutex
	pools map[*pool.Pool]*measurement
}

type measurement struct {
	running bool
	ended   time.Time
	err     error
}

// status is poolStatus; a pool that could not be measured is not ready.
func (g *gauge) status(s pool.State) v1alpha1.PoolStatus {
	p := poolStatus(s)
	if !p.Ready {
		return p
	}
	if err := g.last(s.Pool, s.Pool.Measure); err != nil {
		p.Ready, p.Message = false, err.Error()
	}
	return p
}

// last returns what the last measurement ended with, and begins another if that is long
// ago.
func (g *gauge) last(p *pool.Pool, measure func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.pools[p]
	if m == nil {
		if g.pools == nil {
			g.pools = make(map[*pool.Pool]*measurement)
		}
		m = &measurement{ended: time.Now()}
		g.pools[p] = m
	}
	if !m.running && time.Since(m.ended) >= g.every {
		m.running = true
		go func() {
			err := measure()
			g.mu.Lock()
			defer g.mu.Unlock()
			m.running, m.ended, m.err = false, time.Now(), err
		}()
	}
	return m.err
}
