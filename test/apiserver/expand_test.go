//go:build kube

package apiserver

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// expand calls ControllerExpandVolume with the time limit of a test.
func expand(t *testing.T, id string, bytes int64) (int64, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp, err := leader.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}})
	if err == nil && !resp.NodeExpansionRequired {
		t.Error("kubelet is not told to grow what the pod sees")
	}
	return resp.GetCapacityBytes(), err
}

// grows makes a node with a pool of 100 MiB and a volume of 10 MiB there.
func grows(t *testing.T, name string) *node {
	t.Helper()
	n := newNode(t, name, name, 100*mib)
	seen(t, name, name, 100*mib)
	_, err := create(t, request(name, name, 10*mib))
	must(t, err)
	t.Cleanup(func() { must(t, remove(t, name)) })
	seen(t, name, name, 90*mib)
	return n
}

func wantSize(t *testing.T, name string, bytes int64) {
	t.Helper()
	if v := get(t, name); v.Spec.CapacityBytes != bytes || v.Status.CapacityBytes != bytes {
		t.Errorf("spec %d, file %d, want %d", v.Spec.CapacityBytes, v.Status.CapacityBytes, bytes)
	}
	seen(t, name, name, 100*mib-bytes)
}

func TestExpand(t *testing.T) {
	grows(t, "expand")
	for _, c := range []struct{ ask, get int64 }{
		{20 * mib, 20 * mib}, {20 * mib, 20 * mib},
		{20*mib + 1, 21 * mib}, // whole MiB
		{5 * mib, 21 * mib},    // never smaller
		{100 * mib, 100 * mib}, // all there is
	} {
		got, err := expand(t, "expand", c.ask)
		if err != nil || got != c.get {
			t.Errorf("asked for %d: %d, %v, want %d", c.ask, got, err, c.get)
		}
		wantSize(t, "expand", c.get)
	}
	// CreateVolume of the name finds it, and its size by the range.
	_, err := create(t, request("expand", "expand", 10*mib))
	must(t, err)
}

func TestExpandThatIsInvalid(t *testing.T) {
	grows(t, "expand-bad")
	for name, c := range map[string]struct {
		change func(*csi.ControllerExpandVolumeRequest)
		code   codes.Code
		says   string
	}{
		"no volume id":      {func(r *csi.ControllerExpandVolumeRequest) { r.VolumeId = "" }, codes.InvalidArgument, "volume_id is empty"},
		"an unknown volume": {func(r *csi.ControllerExpandVolumeRequest) { r.VolumeId = "unknown" }, codes.NotFound, `"unknown" does not exist`},
		"no size":           {func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange = nil }, codes.InvalidArgument, "capacity_range is missing"},
		"an empty range":    {func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange = &csi.CapacityRange{} }, codes.InvalidArgument, "capacity_range is empty"},
		"a negative size":   {func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange.RequiredBytes = -1 }, codes.InvalidArgument, "negative"},
		"a negative limit":  {func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: -1} }, codes.InvalidArgument, "negative"},
		"a limit below the size": {func(r *csi.ControllerExpandVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: 3 * mib, LimitBytes: 2 * mib}
		}, codes.InvalidArgument, "limits to"},
		"a limit below what it has": {func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: 9 * mib} }, codes.OutOfRange, "never made smaller"},
		"a capability that is none": {func(r *csi.ControllerExpandVolumeRequest) { r.VolumeCapability = &csi.VolumeCapability{} }, codes.InvalidArgument, "access_mode"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &csi.ControllerExpandVolumeRequest{VolumeId: "expand-bad", CapacityRange: &csi.CapacityRange{RequiredBytes: 20 * mib}}
			c.change(r)
			_, err := leader.ControllerExpandVolume(t.Context(), r)
			want(t, err, c.code, c.says)
			wantSize(t, "expand-bad", 10*mib)
		})
	}
}

func TestExpandBeyondTheNode(t *testing.T) {
	n := grows(t, "expand-full")
	_, err := expand(t, "expand-full", 101*mib)
	want(t, err, codes.OutOfRange, "94371840 bytes free", "at most 100Mi")
	wantSize(t, "expand-full", 10*mib)
	// A node that takes no new volumes still grows those that it has.
	n.setNode(func(k *corev1.Node) { k.Spec.Unschedulable = true })
	eventually(t, "cordoned", func() bool { return capacityOf(t, "expand-full", "expand-full") == 0 })
	_, err = expand(t, "expand-full", 50*mib)
	must(t, err)
	n.setNode(func(k *corev1.Node) { k.Spec.Unschedulable = false })
	wantSize(t, "expand-full", 50*mib)
	n.setUblk(func(s *v1alpha1.UblkNodeStatus) { s.Pools[0].Ready, s.Pools[0].Message = false, "read-only" })
	eventually(t, "the pool is broken", func() bool { return capacityOf(t, "expand-full", "expand-full") == 0 })
	_, err = expand(t, "expand-full", 60*mib)
	want(t, err, codes.Unavailable, "does not work (read-only)")
	if v := get(t, "expand-full"); v.Spec.CapacityBytes != 50*mib {
		t.Errorf("spec %d", v.Spec.CapacityBytes)
	}
}

// The ledger thinks that there is room, and the node knows better.
func TestExpandThatTheNodeRefuses(t *testing.T) {
	n := grows(t, "expand-no")
	n.tell(func(n *node) { n.full = true })
	_, err := expand(t, "expand-no", 50*mib)
	want(t, err, codes.OutOfRange, "node expand-no can't grow it: no room left")
	wantSize(t, "expand-no", 10*mib)
	if !meta.IsStatusConditionTrue(get(t, "expand-no").Status.Conditions, v1alpha1.VolumeReady) {
		t.Error("a volume that can't grow is not usable any more")
	}
	// The claim's owner asks for less.
	n.tell(func(n *node) { n.full = false })
	_, err = expand(t, "expand-no", 20*mib)
	must(t, err)
	wantSize(t, "expand-no", 20*mib)

	// A controller ended between the node's answer and what follows from it.
	n.tell(func(n *node) { n.full = true })
	v := get(t, "expand-no")
	before := v.DeepCopy()
	v.Spec.CapacityBytes = 90 * mib
	must(t, api.Patch(t.Context(), v, client.MergeFrom(before)))
	eventually(t, "refused", func() bool {
		c := meta.FindStatusCondition(get(t, "expand-no").Status.Conditions, v1alpha1.VolumeReady)
		return c.Reason == v1alpha1.ReasonPoolFull
	})
	seen(t, "expand-no", "expand-no", 10*mib)
	n.mu.Lock()
	n.full = false // without telling: the node does not try again by itself
	n.mu.Unlock()
	_, err = expand(t, "expand-no", 30*mib)
	must(t, err)
	wantSize(t, "expand-no", 30*mib)

	// The same, and the claim's owner settles for what there is: it is not held for good.
	n.tell(func(n *node) { n.full = true })
	v = get(t, "expand-no")
	before = v.DeepCopy()
	v.Spec.CapacityBytes = 90 * mib
	must(t, api.Patch(t.Context(), v, client.MergeFrom(before)))
	seen(t, "expand-no", "expand-no", 10*mib)
	eventually(t, "the size that it has is enough", func() bool {
		_, err = expand(t, "expand-no", 30*mib)
		return err == nil && get(t, "expand-no").Spec.CapacityBytes == 30*mib
	})
	wantSize(t, "expand-no", 30*mib)
	// A copy is as large as the volume is, and not as it was to be.
	n.tell(func(n *node) { n.full = false })
	c, err := create(t, func() *csi.CreateVolumeRequest {
		r := request("expand-no-copy", "expand-no", 0)
		r.VolumeContentSource = fromVolume("expand-no")
		return r
	}())
	must(t, err)
	if c.CapacityBytes != 30*mib {
		t.Errorf("the copy has %d bytes", c.CapacityBytes)
	}
	must(t, remove(t, "expand-no-copy"))
}

func TestExpandOnASilentNode(t *testing.T) {
	n := grows(t, "expand-late")
	n.tell(func(n *node) { n.silent = true })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := leader.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "expand-late", CapacityRange: &csi.CapacityRange{RequiredBytes: 60 * mib}})
	want(t, err, codes.DeadlineExceeded, "waits for node expand-late to grow it")
	seen(t, "expand-late", "expand-late", 40*mib) // promised already
	n.tell(func(n *node) { n.silent = false })
	_, err = expand(t, "expand-late", 60*mib)
	must(t, err)
	wantSize(t, "expand-late", 60*mib)

	n.condition(v1alpha1.NodeReady, "stopped")
	eventually(t, "the plugin is down", func() bool { return capacityOf(t, "expand-late", "expand-late") == 0 })
	start := time.Now()
	_, err = expand(t, "expand-late", 70*mib)
	want(t, err, codes.Unavailable, "plugin is not ready (stopped)")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("refused after %v, must be at once", took)
	}
	if v := get(t, "expand-late"); v.Spec.CapacityBytes != 60*mib {
		t.Error("the size was written for a node that can't be expected to act")
	}
	n.setUblk(func(s *v1alpha1.UblkNodeStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: "Ready"})
	})
	seen(t, "expand-late", "expand-late", 40*mib)
}

// Growth and new volumes at once do not take the same bytes.
func TestExpandBurst(t *testing.T) {
	const volumes = 10
	newNode(t, "expand-burst", "expand-burst", 100*mib)
	seen(t, "expand-burst", "expand-burst", 100*mib)
	id := func(i int) string { return fmt.Sprintf("expand-burst-%d", i) }
	for i := range volumes {
		_, err := create(t, request(id(i), "expand-burst", mib))
		must(t, err)
	}
	seen(t, "expand-burst", "expand-burst", 90*mib)
	var wg sync.WaitGroup
	var grown, made atomic.Int32
	for i := range volumes {
		wg.Go(func() {
			switch _, err := expand(t, id(i), 11*mib); status.Code(err) {
			case codes.OK:
				grown.Add(1)
			case codes.OutOfRange:
			default:
				t.Error(err)
			}
		})
		wg.Go(func() {
			switch _, err := create(t, request(id(volumes+i), "expand-burst", 10*mib)); status.Code(err) {
			case codes.OK:
				made.Add(1)
			case codes.ResourceExhausted:
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var sum int64
	for _, v := range volumesOf(t, "expand-burst") {
		sum += v.Spec.CapacityBytes
	}
	if grown.Load()+made.Load() != 9 || sum != 100*mib {
		t.Errorf("%d grown and %d made, of 10 MiB each in the 90 that were free; %d bytes in all", grown.Load(), made.Load(), sum)
	}
	for _, v := range volumesOf(t, "expand-burst") {
		must(t, remove(t, v.Name))
	}
}
