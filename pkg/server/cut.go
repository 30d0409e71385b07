package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
)

// Times of a cut. Requests that are in flight are waited for; those that come meanwhile
// wait as long. Should the server not come back, the worker lets them go on by itself.
const (
	cutLimit     = 5 * time.Second
	cutPatience  = 2 * time.Second
	cutHeldMost  = 4 * time.Second
	resumeLimit  = 2 * time.Second
	maxCutCopies = 256
)

// A cutCopy is one volume of a cut, and what becomes of it.
type cutCopy struct {
	id, target string

	volume *volume
	source *os.File
	copy   *os.File
}

func newCopies(r *serverv1.CutRequest) ([]*cutCopy, error) {
	if n := len(r.Copies); n == 0 || n > maxCutCopies {
		return nil, fmt.Errorf("cut of %d volumes, 1 to %d can be: %w", n, maxCutCopies, errInvalid)
	}
	var list []*cutCopy
	for _, c := range r.Copies {
		if slices.ContainsFunc(list, func(o *cutCopy) bool { return o.id == c.VolumeId || o.target == c.TargetPath }) {
			return nil, fmt.Errorf("cut names volume %s or target %s twice: %w", c.VolumeId, c.TargetPath, errInvalid)
		}
		list = append(list, &cutCopy{id: c.VolumeId, target: c.TargetPath})
	}
	return list, nil
}

// cut clones the files of volumes, all at one moment, and returns for how long their
// requests were held back. No detach, growth or recovery of them comes in between.
func (s *Server) cut(ctx context.Context, list []*cutCopy) (held time.Duration, err error) {
	giveBack := func() {
		for _, c := range list {
			if c.volume != nil {
				s.end(c.volume, opCut)
			}
		}
	}
	for _, c := range list {
		if c.volume, err = s.takeLive(c.id, opCut); err != nil {
			giveBack()
			return 0, err
		}
	}
	return detached(ctx, s, cutLimit, func(ctx context.Context) (time.Duration, error) {
		defer giveBack()
		held, err := s.cutTaken(ctx, list)
		if err != nil {
			return 0, err
		}
		s.metrics.cutHeld.Observe(held.Seconds())
		s.log.Info("volumes cut", "count", len(list), "held", held.String())
		return held, nil
	})
}

func (s *Server) cutTaken(ctx context.Context, list []*cutCopy) (held time.Duration, err error) {
	defer func() {
		for _, c := range list {
			err = errors.Join(err, c.close(err != nil))
		}
	}()
	// Whatever can fail without the volumes standing still does so now.
	for _, c := range list {
		if err := c.open(s.poolsDir); err != nil {
			return 0, fmt.Errorf("cut volume %s: %w", c.id, err)
		}
	}
	begin := time.Now()
	err = eachCopy(list, func(c *cutCopy) error { return s.cutSteps.hold(ctx, c) })
	if err == nil {
		err = eachCopy(list, s.cutSteps.clone)
	}
	// After a hold that failed, too: it may have taken place all the same.
	resumeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeLimit)
	defer cancel()
	resumeErr := eachCopy(list, func(c *cutCopy) error { return s.cutSteps.resume(resumeCtx, c) })
	if err == nil {
		err = resumeErr
	}
	return time.Since(begin), err
}

// eachCopy does something for all at once, and returns one of the errors.
func eachCopy(list []*cutCopy, f func(*cutCopy) error) error {
	var g errgroup.Group
	for _, c := range list {
		g.Go(func() error {
			if err := f(c); err != nil {
				return fmt.Errorf("cut volume %s: %w", c.id, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// cutSteps are what a cut does with each volume, the same with all before it goes on. Only
// the test that shows what happens without one replaces it.
type cutSteps struct {
	hold   func(context.Context, *cutCopy) error
	clone  func(*cutCopy) error
	resume func(context.Context, *cutCopy) error
}

var realCut = cutSteps{
	hold: func(ctx context.Context, c *cutCopy) error {
		return heldError(c.volume.worker.proc.Hold(ctx, c.volume.info.ID, cutPatience, cutHeldMost))
	},
	clone: (*cutCopy).clone,
	resume: func(ctx context.Context, c *cutCopy) error {
		return heldError(c.volume.worker.proc.Resume(ctx, c.volume.info.ID))
	},
}

// heldError says of a worker's error what it means: that the volume did not stand still.
func heldError(err error) error {
	switch {
	case err == nil, errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, worker.ErrLost):
		return fmt.Errorf("%w: the volume is being recovered: %w", errUnavailable, err)
	}
	return fmt.Errorf("%w: %w", errUnavailable, err)
}
