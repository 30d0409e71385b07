//go:build kube

package apiserver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// request asks for a raw block volume in a pool, on one of nodes or on any.
func request(name, pool string, bytes int64, nodes ...string) *csi.CreateVolumeRequest {
	r := &csi.CreateVolumeRequest{
		Name:          name,
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		Parameters:    map[string]string{"pool": pool},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		}},
	}
	for _, n := range nodes {
		at := &csi.Topology{Segments: map[string]string{driver.TopologyKey: n}}
		if r.AccessibilityRequirements == nil {
			r.AccessibilityRequirements = &csi.TopologyRequirement{}
		}
		r.AccessibilityRequirements.Requisite = append(r.AccessibilityRequirements.Requisite, at)
		r.AccessibilityRequirements.Preferred = append(r.AccessibilityRequirements.Preferred, at)
	}
	return r
}

// create calls CreateVolume with the time limit of a test.
func create(t *testing.T, r *csi.CreateVolumeRequest) (*csi.Volume, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp, err := leader.CreateVolume(ctx, r)
	return resp.GetVolume(), err
}

func remove(t *testing.T, id string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := leader.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

// want checks code and message of an error.
func want(t *testing.T, err error, code codes.Code, parts ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got %v, want %v", err, code)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want it to say %q", err, part)
		}
	}
}

// get reads a volume, nil if there is none.
func get(t *testing.T, name string) *v1alpha1.UblkVolume {
	t.Helper()
	v := &v1alpha1.UblkVolume{}
	err := api.Get(context.Background(), client.ObjectKey{Name: name}, v)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return v
}

// eventually waits for the effect of something that nobody announces here.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if check() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// seen waits until the controller has taken note of what a test did to a node.
func seen(t *testing.T, node, pool string, available int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d bytes available on %s", available, node), func() bool { return available == capacityOf(t, node, pool) })
}

func capacityOf(t *testing.T, node, pool string) int64 {
	t.Helper()
	r := &csi.GetCapacityRequest{Parameters: map[string]string{"pool": pool}}
	if node != "" {
		r.AccessibleTopology = &csi.Topology{Segments: map[string]string{driver.TopologyKey: node}}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got, err := leader.GetCapacity(ctx, r)
	must(t, err)
	return got.AvailableCapacity
}

func TestCreateIsIdempotent(t *testing.T) {
	newNode(t, "create-1", "create", 100*mib)
	newNode(t, "create-2", "create", 100*mib)
	seen(t, "create-1", "create", 100*mib)
	seen(t, "create-2", "create", 100*mib)
	r := request("create-v", "create", 10*mib-5, "create-1")
	first, err := create(t, r)
	must(t, err)
	t.Cleanup(func() { must(t, remove(t, first.VolumeId)) })
	expected := &csi.Volume{
		VolumeId: "create-v", CapacityBytes: 10 * mib,
		VolumeContext:      map[string]string{"pool": "create", "queues": "1", "queueDepth": "64"},
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{driver.TopologyKey: "create-1"}}},
	}
	if diff := cmp.Diff(expected, first, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	again, err := create(t, r)
	must(t, err)
	if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
		t.Errorf("the second call answers otherwise (-first +second):\n%s", diff)
	}
	seen(t, "create-1", "create", 90*mib)

	differs := map[string]struct {
		change func(*csi.CreateVolumeRequest)
		says   string
	}{
		"a larger size":   {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 11 * mib }, "11534336 are required"},
		"a smaller limit": {func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: 9 * mib} }, "9437184 are the limit"},
		"another pool":    {func(r *csi.CreateVolumeRequest) { r.Parameters["pool"] = "other" }, `not "other"`},
		"other queues":    {func(r *csi.CreateVolumeRequest) { r.Parameters["queues"] = "2" }, "it has 1 queues, not 2"},
		"other depth":     {func(r *csi.CreateVolumeRequest) { r.Parameters["queueDepth"] = "2" }, "its queue depth is 64, not 2"},
		"another topology": {func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = request("", "", 0, "create-2").AccessibilityRequirements
		}, "it is on node create-1"},
	}
	for name, c := range differs {
		t.Run(name+" is refused", func(t *testing.T) {
			r := request("create-v", "create", 10*mib-5, "create-1")
			c.change(r)
			_, err := create(t, r)
			want(t, err, codes.AlreadyExists, c.says)
		})
	}
	t.Run("a wider range is the same volume", func(t *testing.T) {
		_, err := create(t, request("create-v", "create", 5*mib, "create-2", "create-1"))
		must(t, err)
	})
}

func TestCreateWithStrangeName(t *testing.T) {
	newNode(t, "strange-1", "strange", 100*mib)
	seen(t, "strange-1", "strange", 100*mib)
	name := "Some Name/with Ünicode " + strings.Repeat("x", 100)
	v, err := create(t, request(name, "strange", mib))
	must(t, err)
	if !strings.HasPrefix(v.VolumeId, "h-") || get(t, v.VolumeId).Spec.CSIName != name {
		t.Errorf("volume %q, object %+v", v.VolumeId, get(t, v.VolumeId).Spec)
	}
	must(t, remove(t, v.VolumeId))
}

func TestCreateOneNameFromManyCallers(t *testing.T) {
	newNode(t, "same-1", "same", 100*mib)
	seen(t, "same-1", "same", 100*mib)
	var wg sync.WaitGroup
	var done atomic.Int32
	for range 20 {
		wg.Go(func() {
			_, err := create(t, request("same-v", "same", 10*mib))
			switch status.Code(err) {
			case codes.OK:
				done.Add(1)
			case codes.Aborted:
				if !strings.Contains(err.Error(), "CreateVolume of the same volume is in flight") {
					t.Errorf("ABORTED must name the operation in flight: %v", err)
				}
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if done.Load() == 0 {
		t.Error("nobody got the volume")
	}
	if got := len(volumesOf(t, "same-1")); got != 1 {
		t.Errorf("%d objects", got)
	}
	must(t, remove(t, "same-v"))
	seen(t, "same-1", "same", 100*mib)
}

// TestBurst asks for more volumes at once than two nodes can take.
func TestBurst(t *testing.T) {
	const room, calls = 20, 50
	nodes := []string{"burst-1", "burst-2"}
	for _, n := range nodes {
		newNode(t, n, "burst", room/2*10*mib+mib) // a bit more than fits, so that what is left is no zero by luck
		seen(t, n, "burst", room/2*10*mib+mib)
	}
	var wg sync.WaitGroup
	var made sync.Map
	var ok, full atomic.Int32
	for i := range calls {
		wg.Go(func() {
			name := fmt.Sprintf("burst-v-%02d", i)
			_, err := create(t, request(name, "burst", 10*mib))
			switch status.Code(err) {
			case codes.OK:
				ok.Add(1)
				made.Store(name, true)
			case codes.ResourceExhausted:
				full.Add(1)
			default:
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
	if ok.Load() != room || full.Load() != calls-room {
		t.Errorf("%d made and %d refused, want %d and %d", ok.Load(), full.Load(), room, calls-room)
	}
	for _, n := range nodes {
		var sum int64
		for _, v := range volumesOf(t, n) {
			sum += v.Spec.CapacityBytes
		}
		if sum != room/2*10*mib {
			t.Errorf("%s holds %d bytes of volumes, want %d", n, sum, room/2*10*mib)
		}
		seen(t, n, "burst", mib)
	}
	made.Range(func(name, _ any) bool {
		wg.Go(func() {
			if err := remove(t, name.(string)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		return true
	})
	wg.Wait()
	for _, n := range nodes {
		seen(t, n, "burst", room/2*10*mib+mib)
		if left := volumesOf(t, n); len(left) != 0 {
			t.Errorf("%d objects left on %s", len(left), n)
		}
	}
}

func TestCreateRefusesNodes(t *testing.T) {
	cases := map[string]struct {
		change func(*node)
		says   string
	}{
		"cordoned":  {func(n *node) { n.setNode(func(k *corev1.Node) { k.Spec.Unschedulable = true }) }, "it is cordoned"},
		"not-ready": {func(n *node) { n.setNodeReady(corev1.ConditionUnknown) }, "it is not ready"},
		"no-plugin": {func(n *node) {
			must(n.t, api.Delete(n.t.Context(), &v1alpha1.UblkNode{ObjectMeta: metav1.ObjectMeta{Name: n.name}}))
		}, "no csi-ublk node plugin has registered there"},
		"plugin-down":   {func(n *node) { n.condition(v1alpha1.NodeReady, "stopped") }, "plugin is not ready (stopped)"},
		"wedged-kernel": {func(n *node) { n.condition(v1alpha1.NodeKernelHealthy, "DEL_DEV hangs") }, "its kernel is not healthy (DEL_DEV hangs)"},
		"broken-pool": {func(n *node) {
			n.setUblk(func(s *v1alpha1.UblkNodeStatus) { s.Pools[0].Ready, s.Pools[0].Message = false, "read-only" })
		}, "does not work (read-only)"},
		"lost-pool": {func(n *node) { n.setUblk(func(s *v1alpha1.UblkNodeStatus) { s.Pools = nil }) }, `it has no pool "refuse-lost-pool"`},
		"reclaiming": {func(n *node) {
			n.setUblk(func(s *v1alpha1.UblkNodeStatus) { s.Pools[0].ReclaimingBytes = 95 * mib })
		}, "5242880 bytes are free"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := "refuse-" + name
			n := newNode(t, id, id, 100*mib)
			seen(t, id, id, 100*mib)
			c.change(n)
			eventually(t, "refused", func() bool { return capacityOf(t, id, id) < 10*mib })
			start := time.Now()
			_, err := create(t, request(id, id, 10*mib, id))
			want(t, err, codes.ResourceExhausted, id+": ", c.says)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("refused after %v, must be at once", took)
			}
			if v := get(t, id); v != nil {
				t.Errorf("left behind: %+v", v)
			}
		})
	}
}

func (n *node) condition(kind, message string) {
	n.t.Helper()
	n.setUblk(func(s *v1alpha1.UblkNodeStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: "Test", Message: message})
	})
}

func TestCreateWhenTheNodeHasNoRoom(t *testing.T) {
	n := newNode(t, "full-1", "full", 100*mib)
	n.tell(func(n *node) { n.full = true })
	seen(t, "full-1", "full", 100*mib)
	_, err := create(t, request("full-v", "full", 10*mib))
	want(t, err, codes.ResourceExhausted, "node full-1 can't make the volume: PoolFull (no room left)")
	if v := get(t, "full-v"); v != nil {
		t.Errorf("left behind: %+v", v)
	}
	seen(t, "full-1", "full", 100*mib)
	n.tell(func(n *node) { n.full = false })
	_, err = create(t, request("full-v", "full", 10*mib))
	must(t, err)
	must(t, remove(t, "full-v"))
}

func TestCreateContinuesAfterItsDeadline(t *testing.T) {
	n := newNode(t, "late-1", "late", 100*mib)
	n.tell(func(n *node) { n.silent = true })
	seen(t, "late-1", "late", 100*mib)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := leader.CreateVolume(ctx, request("late-v", "late", 10*mib))
	want(t, err, codes.DeadlineExceeded, "waits for node late-1 to make it")
	before := get(t, "late-v")
	if before == nil {
		t.Fatal("the object is gone, and with it what was begun")
	}
	seen(t, "late-1", "late", 90*mib)
	n.tell(func(n *node) { n.silent = false })
	_, err = create(t, request("late-v", "late", 10*mib))
	must(t, err)
	if after := get(t, "late-v"); after.UID != before.UID {
		t.Error("the second call made another object")
	}
	must(t, remove(t, "late-v"))
}

func TestCreateGivesUpWhenTheNodeVanished(t *testing.T) {
	n := newNode(t, "gone-1", "gone", 100*mib)
	n.tell(func(n *node) { n.silent = true })
	seen(t, "gone-1", "gone", 100*mib)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := leader.CreateVolume(ctx, request("gone-v", "gone", 10*mib))
	want(t, err, codes.DeadlineExceeded)
	n.vanish()
	newNode(t, "gone-2", "gone", 100*mib)
	seen(t, "gone-2", "gone", 100*mib)
	var last error
	eventually(t, "the volume is given up and made elsewhere", func() bool {
		_, last = create(t, request("gone-v", "gone", 10*mib))
		return last == nil
	})
	if v := get(t, "gone-v"); v == nil || v.Spec.Node != "gone-2" {
		t.Errorf("got %+v", v)
	}
	must(t, remove(t, "gone-v"))
}
