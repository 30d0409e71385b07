package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrNotConfigured says that the node has no pool of that name. ErrNotReady says
// that it has and that the pool could not be opened yet.
var (
	ErrNotConfigured = errors.New("no such pool on this node")
	ErrNotReady      = errors.New("pool is not ready")
)

// Set is the pools of a node. A pool that can't be opened does not keep the
// others; it is tried again.
type Set struct {
	options []Options

	mu    sync.Mutex
	pools map[string]*Pool
	errs  map[string]error
}

// State is one pool of a Set: open, or with the error that keeps it from being so.
type State struct {
	Options Options
	Pool    *Pool // nil if Err is not
	Err     error
}

// NewSet checks the options of all pools and opens none.
func NewSet(options []Options) (*Set, error) {
	s := &Set{pools: make(map[string]*Pool), errs: make(map[string]error)}
	for _, o := range options {
		o, err := o.withDefaults()
		if err != nil {
			return nil, err
		}
		if _, twice := s.errs[o.Name]; twice {
			return nil, fmt.Errorf("pool %q: configured twice: %w", o.Name, ErrInvalid)
		}
		s.errs[o.Name] = fmt.Errorf("pool %s: not opened yet: %w", o.Name, ErrNotReady)
		s.options = append(s.options, o)
	}
	return s, nil
}

// Open opens the pools that are not open and returns those that were opened. The
// error joins those of the rest.
func (s *Set) Open(ctx context.Context) ([]*Pool, error) {
	var opened []*Pool
	var errs []error
	for _, o := range s.options {
		if _, err := s.Pool(o.Name); err == nil {
			continue
		}
		p, err := Open(ctx, o)
		s.mu.Lock()
		if err != nil {
			s.errs[o.Name] = fmt.Errorf("%w: %w", err, ErrNotReady)
			errs = append(errs, err)
		} else {
			delete(s.errs, o.Name)
			s.pools[o.Name] = p
			opened = append(opened, p)
		}
		s.mu.Unlock()
	}
	return opened, errors.Join(errs...)
}

// Pool returns an open pool, or an error matching ErrNotConfigured or ErrNotReady.
func (s *Set) Pool(name string) (*Pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.pools[name]; ok {
		return p, nil
	}
	if err, ok := s.errs[name]; ok {
		return nil, err
	}
	return nil, fmt.Errorf("pool %q: %w", name, ErrNotConfigured)
}

// States returns all pools in the order of their configuration.
func (s *Set) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]State, 0, len(s.options))
	for _, o := range s.options {
		states = append(states, State{Options: o, Pool: s.pools[o.Name], Err: s.errs[o.Name]})
	}
	return states
}

// Run reclaims the space of deleted volumes in all open pools, and every retry
// tries again to open those that are not, until ctx ends. Then it flushes the
// pools, leaves them mounted, and returns. Open may be called before, not
// meanwhile.
func (s *Set) Run(ctx context.Context, retry time.Duration, report func(error)) {
	var reapers sync.WaitGroup
	reclaim := func(p *Pool) { reapers.Go(func() { p.Reclaim(ctx, report) }) }
	for _, state := range s.States() {
		if state.Pool != nil {
			reclaim(state.Pool)
		}
	}
	for {
		select {
		case <-ctx.Done():
			reapers.Wait()
			s.close(report)
			return
		case <-time.After(retry):
		}
		opened, err := s.Open(ctx)
		for _, p := range opened {
			reclaim(p)
		}
		if err != nil && ctx.Err() == nil {
			report(err)
		}
		for _, p := range opened {
			p.changed()
		}
	}
}

func (s *Set) close(report func(error)) {
	for _, state := range s.States() {
		if state.Pool == nil {
			continue
		}
		if err := errors.Join(state.Pool.Flush(), state.Pool.Close()); err != nil {
			report(err)
		}
	}
}
