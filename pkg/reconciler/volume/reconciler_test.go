package volume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/health"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const size = 1 << 20

// devices is a device server with state: what is attached, and whether it answers.
type devices struct {
	mu        sync.Mutex
	attached  map[string]bool
	down      bool
	sizes     map[string]uint64              // of devices
	resize    func(id string) (int64, error) // nil: the kernel can't
	limits    map[string]serverclient.Limits
	changes   int // of limits
	throttled time.Duration
}

func (d *devices) SetLimits(_ context.Context, id string, l serverclient.Limits) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.down:
		return status.Error(codes.Unavailable, "no server")
	case !d.attached[id]:
		return status.Error(codes.NotFound, "not attached")
	}
	d.limits[id] = l
	d.changes++
	return nil
}

func (d *devices) Resize(_ context.Context, id string) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.down:
		return 0, status.Error(codes.Unavailable, "no server")
	case !d.attached[id]:
		return 0, nil
	case d.resize == nil:
		return 0, status.Error(codes.Unimplemented, "no UPDATE_SIZE")
	}
	size, err := d.resize(id)
	if err == nil {
		d.sizes[id] = uint64(size)
	}
	return uint64(size), err
}

func (d *devices) Get(_ context.Context, id string) (serverclient.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.down:
		return serverclient.Device{}, status.Error(codes.Unavailable, "no server")
	case d.attached[id]:
		return serverclient.Device{VolumeID: id, SizeBytes: d.sizes[id], Limits: d.limits[id], Throttled: d.throttled}, nil
	}
	return serverclient.Device{}, status.Error(codes.NotFound, "not attached")
}

// rig is a reconciler over a real pool and an API server in memory.
type rig struct {
	*Reconciler
	t       *testing.T
	devices *devices
	pool    *pool.Pool
	writes  int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	state := t.TempDir()
	dir := filepath.Join(state, "pools", "default")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pools, err := pool.NewSet([]pool.Options{{Name: "default", Kind: pool.KindPath, StateDir: state, Path: dir, SizeBytes: 10 * size}})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := pools.Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, devices: &devices{attached: map[string]bool{}, sizes: map[string]uint64{}, limits: map[string]serverclient.Limits{}}, pool: opened[0]}
	t.Cleanup(func() { r.pool.Close() })
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.UblkVolume{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				r.writes++
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
	r.Reconciler = New(Options{Client: api, Node: "here", Pools: pools, Devices: r.devices, Locks: &driver.VolumeLocks{}})
	return r
}

func (r *rig) add(change func(*v1alpha1.UblkVolume)) {
	r.t.Helper()
	v := &v1alpha1.UblkVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v", Generation: 1, Finalizers: []string{v1alpha1.VolumeFinalizer}},
		Spec:       v1alpha1.UblkVolumeSpec{Node: "here", Pool: "default", CapacityBytes: size, CSIName: "v", State: v1alpha1.VolumePresent},
	}
	if change != nil {
		change(v)
	}
	if err := r.o.Client.Create(context.Background(), v); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) reconcile() ctrl.Result {
	r.t.Helper()
	result, err := r.Reconcile(context.Background(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "v"}})
	if err != nil {
		r.t.Fatal(err)
	}
	return result
}

func (r *rig) get() *v1alpha1.UblkVolume {
	r.t.Helper()
	v := &v1alpha1.UblkVolume{}
	if err := r.o.Client.Get(context.Background(), types.NamespacedName{Name: "v"}, v); err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r *rig) setState(s v1alpha1.VolumeState) {
	r.t.Helper()
	v := r.get()
	v.Spec.State = s
	v.Generation++
	if err := r.o.Client.Update(context.Background(), v); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) condition(kind string, want metav1.ConditionStatus, reason string) {
	r.t.Helper()
	v := r.get()
	c := meta.FindStatusCondition(v.Status.Conditions, kind)
	if c == nil || c.Status != want || c.Reason != reason || c.ObservedGeneration != v.Generation {
		r.t.Errorf("condition %s of generation %d is %+v, want %s %s", kind, v.Generation, c, want, reason)
	}
}

func (r *rig) file(want bool) {
	r.t.Helper()
	_, err := os.Stat(r.pool.VolumePath("v"))
	if got := err == nil; got != want || err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Errorf("file exists: %v (%v), want %v", got, err, want)
	}
}

func TestCreateAndDelete(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.file(true)
	r.condition(v1alpha1.VolumeReady, metav1.ConditionTrue, "Created")
	if v := r.get(); v.Status.ObservedGeneration != v.Generation {
		t.Errorf("observed %d of %d", v.Status.ObservedGeneration, v.Generation)
	}
	r.reconcile()
	if r.writes != 1 {
		t.Errorf("%d status writes for one creation", r.writes)
	}
	if err := r.o.Client.Delete(context.Background(), r.get()); err != nil {
		t.Fatal(err)
	}
	r.reconcile()
	r.file(false)
	err := r.o.Client.Get(context.Background(), types.NamespacedName{Name: "v"}, &v1alpha1.UblkVolume{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the object is still there: %v", err)
	}
}

func TestDeletionWaitsForTheUser(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.devices.attached["v"] = true
	if err := r.o.Client.Delete(context.Background(), r.get()); err != nil {
		t.Fatal(err)
	}
	if again := r.reconcile(); again.RequeueAfter == 0 {
		t.Error("nobody will look again")
	}
	r.file(true)
	r.condition(v1alpha1.VolumeInUse, metav1.ConditionTrue, "Attached")
	writes := r.writes
	r.reconcile()
	if r.writes != writes {
		t.Error("waiting writes the same status again")
	}
	r.devices.attached["v"] = false
	r.reconcile()
	r.file(false)
}

func TestAbsentIsAnsweredOncePerGeneration(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.devices.attached["v"] = true
	r.setState(v1alpha1.VolumeAbsent)
	r.reconcile()
	r.file(true)
	r.condition(v1alpha1.VolumeInUse, metav1.ConditionTrue, "Attached")

	// Free by now, but who asked has been told otherwise.
	r.devices.attached["v"] = false
	r.reconcile()
	r.file(true)
	r.setState(v1alpha1.VolumePresent)
	r.reconcile()
	r.file(true)
	r.condition(v1alpha1.VolumeReady, metav1.ConditionTrue, "Created")
	if meta.FindStatusCondition(r.get().Status.Conditions, v1alpha1.VolumeInUse) != nil {
		t.Error("InUse outlives its question")
	}
	r.setState(v1alpha1.VolumeAbsent)
	r.reconcile()
	r.file(false)
	if f := r.get().Finalizers; len(f) != 0 {
		t.Errorf("finalizers %v", f)
	}
	r.reconcile()
	if f := r.get().Finalizers; len(f) != 0 {
		t.Errorf("adopted again: %v", f)
	}
}

func TestNothingIsRemovedWhileTheServerIsAway(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	r.devices.down = true
	r.setState(v1alpha1.VolumeAbsent)
	if again := r.reconcile(); again.RequeueAfter == 0 {
		t.Error("nobody will look again")
	}
	r.file(true)
	r.devices.down = false
	r.reconcile()
	r.file(false)
}

func TestLostFile(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	r.reconcile()
	if err := os.Remove(r.pool.VolumePath("v")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.reconcile()
		r.file(false)
		r.condition(v1alpha1.VolumeReady, metav1.ConditionFalse, v1alpha1.ReasonFileMissing)
	}
}

func TestFullPool(t *testing.T) {
	r := newRig(t)
	r.add(func(v *v1alpha1.UblkVolume) { v.Spec.CapacityBytes = 11 * size })
	if again := r.reconcile(); again.RequeueAfter == 0 {
		t.Error("nobody will look again")
	}
	r.file(false)
	r.condition(v1alpha1.VolumeReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFull)
}

func TestUnknownPool(t *testing.T) {
	r := newRig(t)
	r.add(func(v *v1alpha1.UblkVolume) { v.Spec.Pool = "fast" })
	r.reconcile()
	r.condition(v1alpha1.VolumeReady, metav1.ConditionFalse, v1alpha1.ReasonPoolMissing)
}

func TestVolumeOfAnotherNode(t *testing.T) {
	r := newRig(t)
	r.add(func(v *v1alpha1.UblkVolume) { v.Spec.Node = "there" })
	r.reconcile()
	r.file(false)
	if r.writes != 0 {
		t.Error("its status was written")
	}
}

func TestObjectMadeByHand(t *testing.T) {
	r := newRig(t)
	r.add(func(v *v1alpha1.UblkVolume) { v.Finalizers = nil })
	r.reconcile()
	r.file(true)
	if f := r.get().Finalizers; len(f) != 1 {
		t.Errorf("finalizers %v: a deletion would leak the file", f)
	}
}

func TestAnotherOperationHasTheLock(t *testing.T) {
	r := newRig(t)
	r.add(nil)
	release, _, _ := r.o.Locks.TryAcquire("v", "NodeStageVolume")
	if again := r.reconcile(); again.RequeueAfter == 0 {
		t.Error("nobody will look again")
	}
	r.file(false)
	release()
	r.reconcile()
	r.file(true)
}

// TestHealthIsReported pins that trouble is written once, and its end too, and that a
// reached limit is no trouble.
func TestHealthIsReported(t *testing.T) {
	r := newRig(t)
	var problems []health.Problem
	r.o.Problems = func(string) []health.Problem { return problems }
	r.add(nil)
	r.reconcile()
	if c := meta.FindStatusCondition(r.get().Status.Conditions, v1alpha1.VolumeHealthy); c != nil {
		t.Errorf("nothing was ever wrong, and the condition is %+v", c)
	}
	problems = []health.Problem{{Reason: health.LimitReached}, {Reason: health.IOErrors, Message: "one"}, {Reason: health.PoolFull, Message: "two"}}
	r.reconcile()
	r.reconcile()
	r.condition(v1alpha1.VolumeHealthy, metav1.ConditionFalse, "IOErrors")
	problems = problems[:1]
	r.reconcile()
	r.reconcile()
	r.condition(v1alpha1.VolumeHealthy, metav1.ConditionTrue, "NoTrouble")
	if r.writes != 3 {
		t.Errorf("%d status writes for a creation, an error and its end", r.writes)
	}
}
