package volume

import (
	"context"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
)

var (
	slow      = v1alpha1.VolumeLimits{IOPS: 100, WriteBandwidth: 1 << 20, BurstMillis: 250}
	slowThere = pool.Limits{IOPS: 100, WriteBytes: 1 << 20, Burst: 250 * time.Millisecond}
)

func (r *rig) setLimits(l *v1alpha1.VolumeLimits) {
	r.t.Helper()
	v := r.get()
	v.Spec.Limits = l
	v.Generation++
	if err := r.o.Client.Update(context.Background(), v); err != nil {
		r.t.Fatal(err)
	}
}

// limits checks what is remembered, in force and reported.
func (r *rig) limits(want pool.Limits) {
	r.t.Helper()
	stored, err := r.pool.Limits("v")
	v := r.get()
	if err != nil || stored != want || limitsOf(v.Status.Limits) != want || v.Status.ObservedGeneration != v.Generation {
		r.t.Errorf("remembered %+v (%v), reported %+v at %d of %d; want %+v", stored, err, v.Status.Limits, v.Status.ObservedGeneration, v.Generation, want)
	}
	if r.devices.attached["v"] && r.devices.limits["v"] != serverclient.Limits(want) {
		r.t.Errorf("in force %+v, want %+v", r.devices.limits["v"], want)
	}
}

func TestLimitsOfANewVolume(t *testing.T) {
	r := newRig(t)
	r.add(func(v *v1alpha1.UblkVolume) { v.Spec.Limits = &slow })
	r.reconcile()
	r.limits(slowThere)
	if r.writes != 1 {
		t.Errorf("%d status writes for one creation", r.writes)
	}
}

func TestLimitsUnderAUser(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.attach()
	r.setLimits(&slow)
	r.reconcile()
	r.limits(slowThere)
	r.reconcile()
	if r.devices.changes != 1 {
		t.Errorf("set %d times", r.devices.changes)
	}
	r.setLimits(nil)
	r.reconcile()
	r.limits(pool.Limits{})
	// A burst alone limits nothing.
	r.setLimits(&v1alpha1.VolumeLimits{BurstMillis: 100})
	r.reconcile()
	r.limits(pool.Limits{})
	if r.devices.changes != 2 {
		t.Errorf("set %d times", r.devices.changes)
	}
}

func TestLimitsAndGrowthAtOnce(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.attach()
	r.devices.resize = func(id string) (int64, error) { return r.pool.Size(id) }
	r.setLimits(&slow)
	r.setCapacity(4 * size)
	r.reconcile()
	r.limits(slowThere)
	r.sizes(4*size, 4*size)
}

func TestLimitsWaitForTheServer(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.attach()
	r.setLimits(&slow)
	r.devices.down = true
	if again := r.reconcile(); again.RequeueAfter == 0 || again.RequeueAfter > time.Second {
		t.Errorf("looked at again in %v", again.RequeueAfter)
	}
	if v := r.get(); v.Status.ObservedGeneration == v.Generation {
		t.Error("reported before they are in force")
	}
	// The next stage has them all the same.
	if stored, err := r.pool.Limits("v"); err != nil || stored != slowThere {
		t.Errorf("remembered %+v, %v", stored, err)
	}
	r.devices.down = false
	r.reconcile()
	r.limits(slowThere)
}

func TestThrottledTimeIsReportedWhenItChanges(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.attach()
	r.devices.throttled = 1500 * time.Millisecond
	for range 2 {
		writes := r.writes
		if again := r.reconcile(); again.RequeueAfter < resyncEvery {
			t.Errorf("looked at again in %v: that would be a write each time", again.RequeueAfter)
		}
		if got := r.get().Status.ThrottledMillis; got != 1500 || r.writes > 2 {
			t.Errorf("%d ms, %d writes after %d", got, r.writes, writes)
		}
	}
}
