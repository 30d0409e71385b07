package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

type server struct {
	info serverclient.Info
	err  error
}

func (s *server) Info(context.Context) (serverclient.Info, error) { return s.info, s.err }

type rig struct {
	*Reconciler
	t      *testing.T
	server *server
	writes int
	onList func() // called once
}

func newRig(t *testing.T) *rig {
	t.Helper()
	state := t.TempDir()
	dir := filepath.Join(state, "pools", "default")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pools, err := pool.NewSet([]pool.Options{
		{Name: "default", Kind: pool.KindPath, StateDir: state, Path: dir, SizeBytes: 10<<20 + 5},
		{Name: "broken", Kind: pool.KindPath, StateDir: state, Path: filepath.Join(state, "nowhere")},
	})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := pools.Open(context.Background())
	if err == nil || len(opened) != 1 {
		t.Fatalf("opened %v, %v", opened, err)
	}
	t.Cleanup(func() { opened[0].Close() })
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, server: &server{info: serverclient.Info{KernelRelease: "7.3.4", DeleteKind: "LOCKED", DevicesMax: 100, DevicesUsed: 2}}}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.UblkNode{}).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
				if r.onList != nil {
					r.onList()
					r.onList = nil
				}
				return c.List(ctx, l, o...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				r.writes++
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
	r.Reconciler = New(Options{Client: api, Node: "here", Pools: pools, Server: r.server, Version: "v1", Pace: time.Nanosecond})
	return r
}

func (r *rig) reconcile() *v1alpha1.UblkNode {
	r.t.Helper()
	result, err := r.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "here"}})
	if err != nil {
		r.t.Fatal(err)
	}
	if result.RequeueAfter == 0 || result.RequeueAfter > 30*time.Second {
		r.t.Errorf("looks again in %v", result.RequeueAfter)
	}
	return r.get()
}

func (r *rig) get() *v1alpha1.UblkNode {
	r.t.Helper()
	n := &v1alpha1.UblkNode{}
	if err := r.o.Client.Get(context.Background(), client.ObjectKey{Name: "here"}, n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) condition(kind string, want metav1.ConditionStatus, reason string) {
	r.t.Helper()
	c := meta.FindStatusCondition(r.get().Status.Conditions, kind)
	if c == nil || c.Status != want || c.Reason != reason {
		r.t.Errorf("condition %s is %+v, want %s %s", kind, c, want, reason)
	}
}

func TestStatus(t *testing.T) {
	r := newRig(t)
	s := r.reconcile().Status
	if s.Kernel.Release != "7.3.4" || s.Kernel.DeleteKind != "LOCKED" || s.Slots.Max != 100 || s.DriverVersion != "v1" {
		t.Errorf("status %+v", s)
	}
	if len(s.Pools) != 2 || !s.Pools[0].Ready || s.Pools[0].CapacityBytes != 10<<20 || s.Pools[1].Ready || s.Pools[1].Message == "" {
		t.Errorf("pools %+v", s.Pools)
	}
	r.condition(v1alpha1.NodeReady, metav1.ConditionTrue, "Ready")
	r.condition(v1alpha1.NodeKernelHealthy, metav1.ConditionTrue, "Answers")
	// A server that has begun anew on the same kernel has not probed it yet.
	r.server.info.DeleteKind = kindUnknown
	if r.reconcile(); r.writes != 1 {
		t.Errorf("%d writes, and nothing changed", r.writes)
	}
	r.server.info.BootID = "another"
	if kind := r.reconcile().Status.Kernel.DeleteKind; kind != kindUnknown {
		t.Errorf("kind %s of a kernel that was booted and not probed", kind)
	}
}

// The disk of one pool does not answer; the others are reported all the same, and it is
// not asked again by every look.
func TestAPoolThatDoesNotAnswerKeepsNoOther(t *testing.T) {
	r := newRig(t)
	answer, asked := make(chan struct{}), make(chan struct{}, 10)
	r.Reconciler.pools.patient = 20 * time.Millisecond
	r.Reconciler.pools.ask = func(s pool.State) v1alpha1.PoolStatus {
		if s.Options.Name == "broken" {
			asked <- struct{}{}
			<-answer
		}
		return poolStatus(s)
	}
	for range 3 {
		s := r.reconcile().Status
		if !s.Pools[0].Ready || s.Pools[1].Ready || s.Pools[1].Name != "broken" || !strings.Contains(s.Pools[1].Message, "has not answered") {
			t.Errorf("pools %+v", s.Pools)
		}
	}
	if len(asked) != 1 {
		t.Errorf("asked %d times", len(asked))
	}
	close(answer)
	for deadline := time.Now().Add(10 * time.Second); strings.Contains(r.reconcile().Status.Pools[1].Message, "has not answered"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it has answered, and is not heard")
		}
	}
	r.condition(v1alpha1.NodeReady, metav1.ConditionTrue, "Ready")
}

// One that has answered is heard, also if the one before it has not.
func TestAPoolBehindOneThatDoesNotAnswerIsHeard(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	w := poolWatch{patient: 50 * time.Millisecond, ask: func(s pool.State) v1alpha1.PoolStatus {
		if s.Options.Name == "hung" {
			<-hang
		}
		return v1alpha1.PoolStatus{Name: s.Options.Name, Ready: true}
	}}
	states := []pool.State{{Options: pool.Options{Name: "hung"}}, {Options: pool.Options{Name: "well"}}}
	for range 20 {
		if list := w.look(t.Context(), states); list[0].Ready || !list[1].Ready {
			t.Fatalf("pools %+v", list)
		}
	}
}

// What a pool has and no object names is reported, or it would be promised twice.
func TestStrays(t *testing.T) {
	r := newRig(t)
	p, err := r.o.Pools.Pool("default")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"known", "stray"} {
		if err := p.Create(v, 2<<20); err != nil {
			t.Fatal(err)
		}
		// Of the same name, in another pool: it names no file of this one.
		o := &v1alpha1.UblkVolume{Spec: v1alpha1.UblkVolumeSpec{Node: "here", Pool: map[string]string{"known": "default", "stray": "broken"}[v]}}
		o.Name = v
		if err := r.o.Client.Create(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
	if s := r.reconcile().Status; s.Pools[0].StrayBytes != 2<<20 || s.Pools[1].StrayBytes != 0 {
		t.Errorf("pools %+v", s.Pools)
	}
	// One whose object comes between the list and the sum.
	r.onList = func() {
		if err := p.Create("late", 2<<20); err != nil {
			t.Error(err)
		}
	}
	if s := r.reconcile().Status; s.Pools[0].StrayBytes != 2<<20 {
		t.Errorf("a volume on its way is a stray: %+v", s.Pools)
	}
}

func TestWedgedKernel(t *testing.T) {
	r := newRig(t)
	r.server.info.Wedged, r.server.info.WedgedMessage = true, "DEL_DEV of device 3"
	r.reconcile()
	r.condition(v1alpha1.NodeKernelHealthy, metav1.ConditionFalse, "Wedged")
}

func TestServerAway(t *testing.T) {
	r := newRig(t)
	r.reconcile()
	r.server.err = errors.New("connection refused")
	s := r.reconcile().Status
	r.condition(v1alpha1.NodeReady, metav1.ConditionFalse, "ServerUnavailable")
	if s.Kernel.Release != "7.3.4" {
		t.Error("what is known of the kernel was forgotten")
	}
	r.server.err = nil
	r.reconcile()
	r.condition(v1alpha1.NodeReady, metav1.ConditionTrue, "Ready")
}

func TestOrderlyStop(t *testing.T) {
	r := newRig(t)
	if err := r.Stop(context.Background()); err != nil {
		t.Errorf("before there is an object: %v", err)
	}
	r.reconcile()
	if err := r.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.condition(v1alpha1.NodeReady, metav1.ConditionFalse, "Stopped")
	if len(r.get().Status.Pools) != 2 {
		t.Error("the pools were forgotten")
	}
}

func TestWritesArePaced(t *testing.T) {
	r := newRig(t)
	r.reconcile()
	r.o.Pace = time.Hour
	r.server.info.DevicesUsed++
	result, err := r.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "here"}})
	if err != nil || result.RequeueAfter < time.Minute || r.writes != 1 {
		t.Errorf("%+v, %v, %d writes", result, err, r.writes)
	}
}
