package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/capacity"
)

// Start feeds the ledger and the waiters from the cache until ctx ends. The
// service answers from the moment the ledger has seen every object.
//
// The informers are asked for here rather than at construction, so that they
// read everything after the lease was taken: a cache that was filled earlier may
// lag behind the last volumes of the former holder, and the ledger would promise
// their bytes again.
func (s *Service) Start(ctx context.Context) error {
	defer s.ready.Store(false)
	type feed struct {
		object  client.Object
		handler toolscache.ResourceEventHandler
	}
	feeds := []feed{
		{&v1alpha1.UblkVolume{}, handler(s.volumeSeen, s.volumeGone)},
		{&v1alpha1.UblkSnapshot{}, handler(s.snapshotSeen, s.snapshotGone)},
		{&v1alpha1.UblkNode{}, handler(s.ublkNodeChanged, s.ublkNodeChanged)},
		{&corev1.Node{}, handler(s.nodeChanged, s.nodeChanged)},
	}
	if s.plugins != nil {
		// First, so that no node is offered before it is known whether it has a plugin.
		feeds = slices.Insert(feeds, 0, feed{&corev1.Pod{}, handler(s.plugins.seen, s.plugins.gone)})
	}
	informers := make([]cache.Informer, len(feeds))
	for i, f := range feeds {
		informer, err := s.o.Cache.GetInformer(ctx, f.object)
		if err != nil {
			return fmt.Errorf("watch %T: %w", f.object, err)
		}
		informers[i] = informer
	}
	// Only now: the handler of one kind reads the others.
	for i, f := range feeds {
		registration, err := informers[i].AddEventHandler(f.handler)
		if err != nil {
			return fmt.Errorf("watch %T: %w", f.object, err)
		}
		defer func() { _ = informers[i].RemoveEventHandler(registration) }()
		if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return nil // told to stop
		}
	}
	s.ready.Store(true)
	<-ctx.Done()
	return nil
}

// handler calls seen for what is or became so, and gone for what is no more.
func handler[T client.Object](seen, gone func(T)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { seen(o.(T)) },
		UpdateFunc: func(before, now any) {
			// One object may replace another of its name while the watch was down.
			if b := before.(T); b.GetUID() != now.(T).GetUID() {
				gone(b)
			}
			seen(now.(T))
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if t, ok := o.(T); ok {
				gone(t)
			}
		},
	}
}

func (s *Service) volumeSeen(v *v1alpha1.UblkVolume) {
	s.o.Ledger.SetVolume(ledgerVolume(v))
	s.waiters.wake(v.Name)
}

// ledgerVolume is a volume as the ledger knows it.
func ledgerVolume(v *v1alpha1.UblkVolume) capacity.Volume {
	return capacity.Volume{
		Name:       v.Name,
		UID:        string(v.UID),
		Place:      capacity.Place{Node: v.Spec.Node, Pool: v.Spec.Pool},
		Bytes:      v.Spec.CapacityBytes,
		Generation: v.Generation,
	}
}

func (s *Service) volumeGone(v *v1alpha1.UblkVolume) {
	s.o.Ledger.DeleteVolume(v.Name, string(v.UID))
	s.waiters.wake(v.Name)
}
