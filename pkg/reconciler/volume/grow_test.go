package volume

import (
	"context"
	"strings"
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
)

func (r *rig) setCapacity(bytes int64) {
	r.t.Helper()
	v := r.get()
	v.Spec.CapacityBytes = bytes
	v.Generation++
	if err := r.o.Client.Update(context.Background(), v); err != nil {
		r.t.Fatal(err)
	}
}

// attach gives the volume a device as large as its file is now.
func (r *rig) attach() {
	r.t.Helper()
	size, err := r.pool.Size("v")
	if err != nil {
		r.t.Fatal(err)
	}
	r.devices.attached["v"], r.devices.sizes["v"] = true, uint64(size)
}

func (r *rig) sizes(capacity, device int64) {
	r.t.Helper()
	file, err := r.pool.Size("v")
	if s := r.get().Status; err != nil || file != capacity || s.CapacityBytes != capacity || s.DeviceBytes != device {
		r.t.Errorf("file %d (%v), status %d, device %d; want %d and %d", file, err, s.CapacityBytes, s.DeviceBytes, capacity, device)
	}
}

func (r *rig) fails() error {
	r.t.Helper()
	_, err := r.Reconcile(context.Background(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "v"}})
	if err == nil {
		r.t.Error("no error: nobody would look again soon")
	}
	return err
}

func TestGrowUnattached(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.sizes(size, 0)
	r.setCapacity(4 * size)
	r.reconcile()
	r.sizes(4*size, 0)
	r.condition(v1alpha1.VolumeReady, metav1.ConditionTrue, "Created")
	writes := r.writes
	r.reconcile()
	if writes != 2 || r.writes != writes {
		t.Errorf("%d status writes for a creation and a growth, %d in the end", writes, r.writes)
	}
}

func TestGrowAttached(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.attach()
	r.devices.resize = func(id string) (int64, error) { return r.pool.Size(id) }
	r.setCapacity(4 * size)
	r.reconcile()
	r.sizes(4*size, 4*size)
	r.condition(v1alpha1.VolumeReady, metav1.ConditionTrue, "Created")
	r.devices.attached["v"] = false
	r.reconcile()
	r.sizes(4*size, 0)
}

func TestGrowWhereTheKernelCannot(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.attach()
	r.setCapacity(4 * size)
	r.reconcile()
	r.sizes(4*size, size)
	r.condition(v1alpha1.VolumeReady, metav1.ConditionTrue, "Created")
	if c := meta.FindStatusCondition(r.get().Status.Conditions, v1alpha1.VolumeReady); !strings.Contains(c.Message, "when the volume is next staged") {
		t.Errorf("it does not say when the device grows: %q", c.Message)
	}
	writes := r.writes
	r.reconcile()
	if r.writes != writes {
		t.Error("the same status is written again")
	}
	r.attach()
	r.reconcile()
	r.sizes(4*size, 4*size)
}

// Whoever asked must not believe that the device has grown before it has, and the
// growth goes on where it was.
func TestGrowthGoesOn(t *testing.T) {
	grown := func(r *rig) {
		r.t.Helper()
		r.reconcile()
		r.sizes(4*size, 4*size)
		if v := r.get(); v.Status.ObservedGeneration != v.Generation {
			r.t.Error("not answered")
		}
	}
	unanswered := func(r *rig) {
		r.t.Helper()
		if v := r.get(); v.Status.ObservedGeneration == v.Generation {
			r.t.Error("answered too early")
		}
	}
	begin := func(t *testing.T) *rig {
		r := newRig(t)
		r.add(nil)
		r.reconcile()
		r.attach()
		r.devices.resize = func(id string) (int64, error) { return r.pool.Size(id) }
		r.setCapacity(4 * size)
		return r
	}
	t.Run("after the file, when the plugin was restarted", func(t *testing.T) {
		r := begin(t)
		if err := r.pool.Grow("v", 4*size); err != nil {
			t.Fatal(err)
		}
		grown(r)
	})
	t.Run("after the device", func(t *testing.T) {
		r := begin(t)
		if err := r.pool.Grow("v", 4*size); err != nil {
			t.Fatal(err)
		}
		r.attach()
		grown(r)
	})
	t.Run("when the device server is back", func(t *testing.T) {
		r := begin(t)
		r.devices.down = true
		if again := r.reconcile(); again.RequeueAfter == 0 {
			t.Error("nobody will look again")
		}
		unanswered(r)
		r.devices.down = false
		grown(r)
	})
	t.Run("when the device server has an error", func(t *testing.T) {
		r := begin(t)
		resize := r.devices.resize
		r.devices.resize = func(string) (int64, error) { return 0, status.Error(codes.Internal, "no") }
		r.fails()
		unanswered(r)
		r.devices.resize = func(string) (int64, error) { return size, nil }
		r.fails()
		unanswered(r)
		r.devices.resize = resize
		grown(r)
	})
	t.Run("when another operation has the lock", func(t *testing.T) {
		r := begin(t)
		release, _, _ := r.o.Locks.TryAcquire("v", "NodeStageVolume")
		if again := r.reconcile(); again.RequeueAfter == 0 {
			t.Error("nobody will look again")
		}
		unanswered(r)
		release()
		grown(r)
	})
}

func TestGrowInAFullPool(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.attach()
	if err := r.pool.Create("w", 8*size); err != nil {
		t.Fatal(err)
	}
	r.setCapacity(3 * size)
	r.reconcile()
	r.sizes(size, size)
	// It is as usable as before, and says what it lacks.
	r.condition(v1alpha1.VolumeReady, metav1.ConditionTrue, v1alpha1.ReasonPoolFull)
	// There is room by now, but who asked has been told otherwise.
	if err := r.pool.Delete("w"); err != nil {
		t.Fatal(err)
	}
	writes := r.writes
	r.reconcile()
	r.sizes(size, size)
	if r.writes != writes {
		t.Error("the same answer is written again")
	}
	r.setCapacity(size)
	r.reconcile()
	r.condition(v1alpha1.VolumeReady, metav1.ConditionTrue, "Created")
	r.devices.resize = func(id string) (int64, error) { return r.pool.Size(id) }
	r.setCapacity(3 * size)
	r.reconcile()
	r.sizes(3*size, 3*size)
	r.condition(v1alpha1.VolumeReady, metav1.ConditionTrue, "Created")
}

func TestAFileIsNeverMadeSmaller(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	if err := r.pool.Grow("v", 2*size); err != nil {
		t.Fatal(err)
	}
	r.reconcile()
	r.condition(v1alpha1.VolumeReady, metav1.ConditionFalse, v1alpha1.ReasonFileSize)
	if file, err := r.pool.Size("v"); err != nil || file != 2*size {
		t.Errorf("file %d, %v", file, err)
	}
	r.setCapacity(2 * size)
	r.reconcile()
	r.sizes(2*size, 0)
}
