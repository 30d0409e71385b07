package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// parts are the goroutines of a role. They end in two groups: first those that
// take work in, then, when what they took is done, those that it needed.
type parts struct {
	firstCtx, afterCtx   context.Context
	stopFirst, stopAfter context.CancelFunc
	firstWait, afterWait sync.WaitGroup
	failed               chan error
}

func newParts(ctx context.Context) *parts {
	p := &parts{failed: make(chan error, 1)}
	p.firstCtx, p.stopFirst = context.WithCancel(ctx)
	p.afterCtx, p.stopAfter = context.WithCancel(context.WithoutCancel(ctx))
	return p
}

// first starts a part that ends when the role's context does.
func (p *parts) first(name string, run func(context.Context) error) {
	p.firstWait.Go(func() { p.note(name, run(p.firstCtx)) })
}

// after starts a part that ends when all of first have.
func (p *parts) after(name string, run func(context.Context) error) {
	p.afterWait.Go(func() { p.note(name, run(p.afterCtx)) })
}

// note ends the role when a part failed.
func (p *parts) note(name string, err error) {
	if err == nil {
		return
	}
	select {
	case p.failed <- fmt.Errorf("%s: %w", name, err):
	default:
	}
	p.stopFirst()
}

// wait returns when all parts have ended, with the first error. between runs
// when the first group has ended and the second has not.
func (p *parts) wait(between func(context.Context) error) error {
	<-p.firstCtx.Done()
	p.firstWait.Wait()
	ctx, cancel := context.WithTimeout(p.afterCtx, 15*time.Second)
	p.note("stop", between(ctx))
	cancel()
	p.stopAfter()
	p.afterWait.Wait()
	p.stopFirst()
	select {
	case err := <-p.failed:
		return err
	default:
		return nil
	}
}
