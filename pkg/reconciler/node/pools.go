package node

import (
	"context"
	"fmt"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"golang.org/x/sync/singleflight"
)

// poolPatience is how long a status waits for its pools. A disk that hangs must not keep
// those that work from being reported, nor the device server.
const poolPatience = 5 * time.Second

// A poolWatch asks pools how they are. One that does not answer in time is not asked
// again until it has.
type poolWatch struct {
	ask     func(pool.State) v1alpha1.PoolStatus
	patient time.Duration
	asked   singleflight.Group
}

func (w *poolWatch) look(ctx context.Context, states []pool.State) []v1alpha1.PoolStatus {
	ctx, cancel := context.WithTimeout(ctx, w.patient)
	defer cancel()
	answers := make([]<-chan singleflight.Result, len(states))
	for i, s := range states {
		answers[i] = w.asked.DoChan(s.Options.Name, func() (any, error) { return w.ask(s), nil })
	}
	list := make([]v1alpha1.PoolStatus, len(states))
	for i, s := range states {
		select {
		case <-ctx.Done():
		case a := <-answers[i]:
			list[i] = a.Val.(v1alpha1.PoolStatus)
			continue
		}
		select {
		case a := <-answers[i]: // while one before it was waited for
			list[i] = a.Val.(v1alpha1.PoolStatus)
		default:
			list[i] = v1alpha1.PoolStatus{Name: s.Options.Name, Kind: string(s.Options.Kind), FSType: s.Options.FSType,
				Message: fmt.Sprintf("the pool's file system has not answered for %v: is its disk well?", w.patient)}
		}
	}
	return list
}
