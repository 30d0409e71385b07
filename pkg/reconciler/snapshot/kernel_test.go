//go:build ublk

package snapshot

import (
	"cmp"
	"context"
	"errors"
	"os"
	"testing"
	"time"

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

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/cut"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// These tests run as root in a guest whose data disk is theirs: a pool with reflink
// is what they are about. The device server is a model.

const mib = 1 << 20

// server has one volume attached, or none, and counts its cuts.
type server struct {
	pool     *pool.Pool
	attached bool
	written  bool // back, since the last freeze
	frozen   bool
	cuts     int
	err      error // of the next cuts
	thawErr  error
}

func (s *server) Get(context.Context, string) (serverclient.Device, error) {
	if s.attached {
		return serverclient.Device{Major: 1, Minor: 2}, nil
	}
	return serverclient.Device{}, status.Error(codes.NotFound, "not attached")
}

func (s *server) WriteBack(context.Context, uint64) error {
	if s.frozen {
		return errors.New("write back while a file system is frozen")
	}
	s.written = true
	return nil
}

func (s *server) Freeze(context.Context, string, uint64) (func() error, error) {
	if !s.written {
		return nil, errors.New("frozen with all that it has to write")
	}
	s.frozen = true
	return func() error { s.frozen, s.written = false, false; return s.thawErr }, nil
}

func (s *server) Cut(_ context.Context, copies []serverclient.Copy) (time.Duration, error) {
	s.cuts++
	if !s.frozen {
		return 0, errors.New("the file system is not frozen")
	}
	if s.err != nil {
		return 0, s.err
	}
	for _, c := range copies {
		b, err := os.ReadFile(s.pool.VolumePath(c.VolumeID))
		if err == nil {
			err = os.WriteFile(c.TargetPath, b, 0)
		}
		if err != nil {
			return 0, err
		}
	}
	return 3 * time.Millisecond, nil
}

type rig struct {
	*Reconciler
	t      *testing.T
	server *server
	pool   *pool.Pool
	writes int
	// lose the status that is written next, as when the process dies
	lose bool
}

var pools *pool.Set

func newRig(t *testing.T) *rig {
	t.Helper()
	if pools == nil {
		var err error
		disk := cmp.Or(os.Getenv("CSI_UBLK_DATA_DISK"), "/dev/ubdb")
		if pools, err = pool.NewSet([]pool.Options{{Name: "default", Kind: pool.KindDevice, StateDir: "/run/snapshot-test", Device: disk}}); err != nil {
			t.Fatal(err)
		}
		if _, err := pools.Open(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	p, err := pools.Pool("default")
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, pool: p, server: &server{pool: p}}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.UblkSnapshot{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if r.lose {
					return errors.New("the process died")
				}
				r.writes++
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
	r.Reconciler = New(Options{Client: api, Node: "here", Pools: pools, Locks: &driver.VolumeLocks{}, Cutter: &cut.Cutter{Devices: r.server, Freezer: r.server}})
	if err := p.Create("v", 16*mib); err != nil {
		t.Fatal(err)
	}
	s := &v1alpha1.UblkSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Generation: 1, Finalizers: []string{v1alpha1.SnapshotFinalizer}},
		Spec:       v1alpha1.UblkSnapshotSpec{Volume: "v", Node: "here", Pool: "default", CSIName: "s", SizeBytes: 16 * mib},
	}
	if err := api.Create(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Delete("v"), p.DeleteSnapshot("s")); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) reconcile() (ctrl.Result, error) {
	return r.Reconcile(context.Background(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "s"}})
}

func (r *rig) must() {
	r.t.Helper()
	if _, err := r.reconcile(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) get() *v1alpha1.UblkSnapshot {
	r.t.Helper()
	s := &v1alpha1.UblkSnapshot{}
	if err := r.o.Client.Get(context.Background(), types.NamespacedName{Name: "s"}, s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) condition(want metav1.ConditionStatus, reason string) {
	r.t.Helper()
	c := meta.FindStatusCondition(r.get().Status.Conditions, v1alpha1.SnapshotReady)
	if c == nil || c.Status != want || c.Reason != reason {
		r.t.Errorf("ready is %+v, want %s %s", c, want, reason)
	}
}

func TestCutOnce(t *testing.T) {
	r := newRig(t)
	r.server.attached = true
	r.lose = true
	if _, err := r.reconcile(); err == nil {
		t.Fatal("the status was not lost")
	}
	file, err := r.pool.Snapshot("s")
	if err != nil {
		t.Fatal(err)
	}
	r.lose = false
	r.must()
	r.must()
	r.condition(metav1.ConditionTrue, "Cut")
	s := r.get().Status
	if r.server.cuts != 1 || r.writes != 1 {
		t.Errorf("%d cuts and %d status writes for one snapshot", r.server.cuts, r.writes)
	}
	if s.HeldMicros != 3000 || s.AllocatedBytes != file.AllocatedBytes || s.CreatedAt == nil || !s.CreatedAt.Time.Equal(file.At.Truncate(time.Microsecond)) {
		t.Errorf("status %+v of the file %+v", s, file)
	}
	if r.server.frozen {
		t.Error("still frozen")
	}
	if err := r.o.Client.Delete(context.Background(), r.get()); err != nil {
		t.Fatal(err)
	}
	r.must()
	err = r.o.Client.Get(context.Background(), types.NamespacedName{Name: "s"}, &v1alpha1.UblkSnapshot{})
	if _, fileErr := r.pool.Snapshot("s"); !apierrors.IsNotFound(err) || !errors.Is(fileErr, os.ErrNotExist) {
		t.Errorf("object %v, file %v", err, fileErr)
	}
}

func TestLostSnapshotIsNotCutAnew(t *testing.T) {
	r := newRig(t)
	r.must()
	r.condition(metav1.ConditionTrue, "Cut")
	if err := r.pool.DeleteSnapshot("s"); err != nil {
		t.Fatal(err)
	}
	r.must()
	r.condition(metav1.ConditionFalse, v1alpha1.ReasonFileMissing)
}

func TestWhatCanNotBeCut(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*rig)
		reason string
	}{
		"no volume": {func(r *rig) {
			if err := r.pool.Delete("v"); err != nil {
				r.t.Fatal(err)
			}
		}, v1alpha1.ReasonVolumeMissing},
		"a server that is away":  {func(r *rig) { r.server.err = status.Error(codes.Unavailable, "recovering") }, "ServerUnavailable"},
		"a server without room":  {func(r *rig) { r.server.err = status.Error(codes.ResourceExhausted, "no space") }, v1alpha1.ReasonPoolFull},
		"a server that can't":    {func(r *rig) { r.server.err = status.Error(codes.FailedPrecondition, "no reflink") }, v1alpha1.ReasonNoReflink},
		"a server that is wrong": {func(r *rig) { r.server.err = errors.New("bug") }, v1alpha1.ReasonPoolFailed},
		"a thaw that fails":      {func(r *rig) { r.server.thawErr = errors.New("no thaw") }, v1alpha1.ReasonPoolFailed},
		"a disk that is slow":    {func(r *rig) { r.server.err = context.DeadlineExceeded }, reasonTooLong},
		"a volume that grew": {func(r *rig) {
			if err := os.Truncate(r.pool.VolumePath("v"), 32*mib); err != nil {
				r.t.Fatal(err)
			}
		}, v1alpha1.ReasonVolumeGrew},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.server.attached = true
			c.change(r)
			if again, err := r.reconcile(); err != nil || again.RequeueAfter == 0 {
				t.Errorf("again %+v, %v", again, err)
			}
			r.condition(metav1.ConditionFalse, c.reason)
			if _, err := r.pool.Snapshot("s"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a file is left: %v", err)
			}
			if u, err := r.pool.Usage(); err != nil || u.SnapshotBytes != 0 || r.server.frozen {
				t.Errorf("left: usage %+v, frozen %v, %v", u, r.server.frozen, err)
			}
			_ = os.Truncate(r.pool.VolumePath("v"), 16*mib)
		})
	}
}

func TestCutWaitsForTheLock(t *testing.T) {
	r := newRig(t)
	release, _, _ := r.o.Locks.TryAcquire("v", "NodeStageVolume")
	if again, err := r.reconcile(); err != nil || again.RequeueAfter == 0 || again.RequeueAfter > time.Second {
		t.Errorf("again %+v, %v", again, err)
	}
	release()
	r.must()
	r.condition(metav1.ConditionTrue, "Cut")
}

// One of a group cuts for all; what a cut that died has left is not mixed with the next.
func TestGroupIsCutTogether(t *testing.T) {
	r := newRig(t)
	r.server.attached = true
	if err := r.pool.Create("w", 16*mib); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := r.o.Client.Delete(ctx, r.get()); err != nil {
		t.Fatal(err)
	}
	r.must()
	member := func(name string) types.NamespacedName { return types.NamespacedName{Name: name} }
	make := func(name, volume string) {
		t.Helper()
		s := &v1alpha1.UblkSnapshot{
			ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1, Finalizers: []string{v1alpha1.SnapshotFinalizer}},
			Spec: v1alpha1.UblkSnapshotSpec{Volume: volume, Node: "here", Pool: "default", CSIName: name, SizeBytes: 16 * mib,
				Group: "g", GroupMembers: []string{"g2", "g1"}},
		}
		if err := r.o.Client.Create(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	look := func(name string) (again ctrl.Result, s *v1alpha1.UblkSnapshot) {
		t.Helper()
		again, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: member(name)})
		s = &v1alpha1.UblkSnapshot{}
		if err := errors.Join(err, r.o.Client.Get(ctx, member(name), s)); err != nil {
			t.Fatal(err)
		}
		return again, s
	}
	make("g1", "v")
	if again, s := look("g1"); again.RequeueAfter == 0 || s.Status.CreatedAt != nil || r.server.cuts > 0 {
		t.Errorf("cut before all of the group are known: %+v", s.Status)
	}
	make("g2", "w")
	// As a process leaves it that died between the two: the first one's file is last.
	c, err := r.pool.CopyToSnapshot("g2", "w", func() pool.Cut { return pool.Cut{At: time.Unix(1, 0)} })
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.FillFromVolume("w"), c.Finish()); err != nil {
		t.Fatal(err)
	}
	c.Drop()
	if again, s := look("g2"); again.RequeueAfter == 0 || s.Status.CreatedAt != nil {
		t.Errorf("half a group is reported: %+v", s.Status)
	}
	_, s1 := look("g1")
	_, s2 := look("g2")
	if s1.Status.CreatedAt == nil || s2.Status.CreatedAt == nil || !s1.Status.CreatedAt.Equal(s2.Status.CreatedAt) || r.server.cuts != 1 {
		t.Errorf("cut at %v and %v, with %d cuts", s1.Status.CreatedAt, s2.Status.CreatedAt, r.server.cuts)
	}
	// One that is lost is neither cut alone nor has the others cut again.
	if err := r.pool.DeleteSnapshot("g2"); err != nil {
		t.Fatal(err)
	}
	if _, s := look("g2"); !meta.IsStatusConditionFalse(s.Status.Conditions, v1alpha1.SnapshotReady) || r.server.cuts != 1 {
		t.Errorf("%+v, %d cuts", s.Status, r.server.cuts)
	}
	if err := errors.Join(r.pool.DeleteSnapshot("g1"), r.pool.Delete("w")); err != nil {
		t.Fatal(err)
	}
}
