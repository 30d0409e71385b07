package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// ErrNotConfigured says that the node has no pool of that name. ErrNotReady says
// that it has and that the pool could not be opened yet.
var (
	ErrNotConfigured = errors.New("no such pool on this node")
	ErrNotReady      = errors.New("pool is not ready")
)

// Set is the pools of a node. A pool that can't be opened, or whose disk takes its
// time, does not keep the others; it is tried again.
type Set struct {
	options []Options
	opening map[string]*sync.Mutex // held by who opens the pool

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
	s := &Set{opening: make(map[string]*sync.Mutex), pools: make(map[string]*Pool), errs: make(map[string]error)}
	for _, o := range options {
		o, err := o.withDefaults()
		if err != nil {
			return nil, err
		}
		if _, twice := s.errs[o.Name]; twice {
			return nil, fmt.Errorf("pool %q: configured twice: %w", o.Name, ErrInvalid)
		}
		s.errs[o.Name] = fmt.Errorf("pool %s: not opened yet: %w", o.Name, ErrNotReady)
		s.opening[o.Name] = &sync.Mutex{}
		s.options = append(s.options, o)
	}
	return s, nil
}

// Open opens the pools that are not open, all at once, and returns those that were
// opened. The error joins those of the rest. It takes as long as the slowest disk.
func (s *Set) Open(ctx context.Context) ([]*Pool, error) {
	pools, errs := make([]*Pool, len(s.options)), make([]error, len(s.options))
	var wg sync.WaitGroup
	for i, o := range s.options {
		wg.Go(func() { pools[i], errs[i] = s.open(ctx, o) })
	}
	wg.Wait()
	return slices.DeleteFunc(pools, func(p *Pool) bool { return p == nil }), errors.Join(errs...)
}

// open returns nil for a pool that is open already.
func (s *Set) open(ctx context.Context, o Options) (*Pool, error) {
	s.opening[o.Name].Lock()
	defer s.opening[o.Name].Unlock()
	if _, err := s.Pool(o.Name); err == nil {
		return nil, nil
	}
	p, err := Open(ctx, o)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.errs[o.Name] = fmt.Errorf("%w: %w", err, ErrNotReady)
		return nil, err
	}
	delete(s.errs, o.Name)
	s.pools[o.Name] = p
	return p, nil
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

// Run opens the pools that are not open, tries again every retry, and reclaims the space
// of deleted volumes, until ctx ends. Then it flushes the pools, leaves them mounted, and
// returns.
func (s *Set) Run(ctx context.Context, retry time.Duration, report func(error)) {
	var all sync.WaitGroup
	for _, o := range s.options {
		all.Go(func() { s.keep(ctx, o, retry, report) })
	}
	all.Wait()
}

// keep is Run for one pool: a disk that hangs keeps only its own.
func (s *Set) keep(ctx context.Context, o Options, retry time.Duration, report func(error)) {
	for {
		_, err := s.open(ctx, o)
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			report(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
	p, err := s.Pool(o.Name)
	if err != nil {
		report(err)
		return
	}
	p.changed() // it may be ready only now
	// On a goroutine of its own: it gives its thread a priority for good.
	var reaper sync.WaitGroup
	reaper.Go(func() { p.Reclaim(ctx, report) })
	reaper.Wait()
	if err := errors.Join(p.Flush(), p.Close()); err != nil {
		report(err)
	}
}
