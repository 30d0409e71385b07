//go:build soak && linux

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// meddle makes calls for a volume in use, as kubelet does that was restarted: those that
// were answered before, and for statistics. None may disturb the volume.
func (v *volume) meddle(r *rand.Rand) error {
	w := *v
	w.rand = r
	if err := w.up(); err != nil {
		return fmt.Errorf("again, while it is used: %w", err)
	}
	return w.call("statistics", func(ctx context.Context) error {
		answer, err := v.n.csi.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.target(), StagingTargetPath: v.staging()})
		if err == nil && (len(answer.Usage) == 0 || answer.Usage[0].Total <= 0) {
			return fmt.Errorf("statistics: %v", answer)
		}
		return err
	})
}

// downAtOnce makes both calls of the way down at a time. That the order is wrong may cost
// no more than an error.
func (v *volume) downAtOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	var errs [2]error
	var wg sync.WaitGroup
	for i, call := range []func(context.Context) error{v.unpublish, v.unstage} {
		wg.Go(func() {
			if err := call(ctx); err != nil && !again(err) && status.Code(err) != codes.FailedPrecondition && !v.excused(err) {
				errs[i] = fmt.Errorf("unpublish and unstage at once: %w", err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

// A holder keeps a disk open that is none of its business.
type holder struct {
	held atomic.Bool
	done chan struct{}
}

// hold opens the volume's disk for up to three seconds. It may not be stopped meanwhile,
// and whoever tries is told who has it open.
func (v *volume) hold() *holder {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	d, err := v.n.device.Get(ctx, v.local())
	if err != nil {
		return nil // the server was killed; the next one has other things to do
	}
	f, err := os.Open(d.Path)
	if err != nil {
		return nil
	}
	h := &holder{done: make(chan struct{})}
	h.held.Store(true)
	v.n.holds.Add(1)
	time.AfterFunc(time.Duration(v.rand.IntN(3000))*time.Millisecond, func() {
		f.Close()
		h.held.Store(false)
		close(h.done)
	})
	return h
}

// refused says whether an error is the answer to one who stops a disk that is held.
func (h *holder) refused(err error) bool {
	return h != nil && status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "open")
}

// over waits until the disk is not held any more.
func (h *holder) over() {
	if h != nil {
		<-h.done
	}
}
