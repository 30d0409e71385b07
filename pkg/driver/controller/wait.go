package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// waiters are the calls that wait for a change of one object each. An event
// costs a map lookup, however many volumes there are.
type waiters struct {
	mu    sync.Mutex
	calls map[string]map[chan struct{}]struct{} // by volume id, or snapshotKey
}

// add returns a channel that gets a value after each wake of id, several wakes
// possibly in one; done must be called in the end.
func (w *waiters) add(id string) (woken <-chan struct{}, done func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls == nil {
		w.calls = make(map[string]map[chan struct{}]struct{})
	}
	if w.calls[id] == nil {
		w.calls[id] = make(map[chan struct{}]struct{})
	}
	w.calls[id][c] = struct{}{}
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.calls[id], c); len(w.calls[id]) == 0 {
			delete(w.calls, id)
		}
	}
}

func (w *waiters) wake(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.calls[id] {
		select {
		case c <- struct{}{}:
		default: // it has one to read already
		}
	}
}

// await calls check with the cached volume, nil if there is none, now and after
// every change, until check is done or fails. The error is check's, or that of a
// context that ends a little before ctx: see early.
func (s *Service) await(ctx context.Context, id string, check func(*v1alpha1.UblkVolume) (done bool, err error)) error {
	return awaitObject(ctx, &s.waiters, id, func() (*v1alpha1.UblkVolume, error) { return s.cached(id) }, check)
}

// awaitObject is await for what look returns, woken by key.
func awaitObject[T any](ctx context.Context, w *waiters, key string, look func() (T, error), check func(T) (done bool, err error)) error {
	ctx, cancel := early(ctx)
	defer cancel()
	woken, stop := w.add(key) // before the first look, to miss nothing
	defer stop()
	for {
		o, err := look()
		if err != nil {
			return err
		}
		if done, err := check(o); done || err != nil {
			return err
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// early ends a tenth before ctx's deadline, a second at most: an answer that
// arrives after the deadline is thrown away, and with it the word on what is
// being waited for.
func early(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(time.Second, time.Until(deadline)/10)))
}

// cached returns the volume from memory, nil if there is none.
func (s *Service) cached(id string) (*v1alpha1.UblkVolume, error) {
	return read(context.Background(), s.o.Client, id)
}

// live returns the volume from the API server, nil if there is none.
func (s *Service) live(ctx context.Context, id string) (*v1alpha1.UblkVolume, error) {
	return read(ctx, s.o.Live, id)
}

func read(ctx context.Context, from client.Reader, id string) (*v1alpha1.UblkVolume, error) {
	v := &v1alpha1.UblkVolume{}
	err := from.Get(ctx, client.ObjectKey{Name: id}, v)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, apiError(fmt.Errorf("read UblkVolume %s: %w", id, err))
	}
	return v, nil
}
