//go:build ublk

package node

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	volumerec "github.com/csi-ublk/csi-ublk/pkg/reconciler/volume"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// object is a volume's UblkVolume and the reconciler of its node.
type object struct {
	*volumerec.Reconciler
	v   *volume
	api client.Client
}

func newObject(v *volume, l *v1alpha1.VolumeLimits) *object {
	v.t.Helper()
	scheme := runtime.NewScheme()
	size, err := world.pool.Size(v.id)
	v.must(err, v1alpha1.AddToScheme(scheme))
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.UblkVolume{}).WithObjects(&v1alpha1.UblkVolume{
		ObjectMeta: metav1.ObjectMeta{Name: v.id, Generation: 1, Finalizers: []string{v1alpha1.VolumeFinalizer}},
		Spec:       v1alpha1.UblkVolumeSpec{Node: "here", Pool: "default", CapacityBytes: size, CSIName: v.id, State: v1alpha1.VolumePresent, Limits: l},
	}).Build()
	o := &object{volumerec.New(volumerec.Options{Client: api, Node: "here", Pools: world.pools, Devices: world.devices, Locks: v.s.o.Locks}), v, api}
	o.reconcile()
	return o
}

func (o *object) get() *v1alpha1.UblkVolume {
	o.v.t.Helper()
	u := &v1alpha1.UblkVolume{}
	o.v.must(o.api.Get(context.Background(), types.NamespacedName{Name: o.v.id}, u))
	return u
}

// reconcile has the reconciler look, and fails unless it says that all is done.
func (o *object) reconcile() {
	o.v.t.Helper()
	_, err := o.Reconcile(context.Background(), ctrl.Request{NamespacedName: types.NamespacedName{Name: o.v.id}})
	o.v.must(err)
	if u := o.get(); u.Status.ObservedGeneration != u.Generation {
		o.v.t.Errorf("generation %d is not answered: %+v", u.Generation, u.Status)
	}
}

func (o *object) setLimits(l *v1alpha1.VolumeLimits) {
	o.v.t.Helper()
	u := o.get()
	u.Spec.Limits, u.Generation = l, u.Generation+1
	o.v.must(o.api.Update(context.Background(), u))
	start := time.Now()
	o.reconcile()
	if took := time.Since(start); took > time.Second {
		o.v.t.Errorf("in force after %v", took)
	}
}

// rate writes blocks of so many bytes past the page cache, one after the other, and
// returns how many a second were written.
func (v *volume) rate(path string, size int, long time.Duration) float64 {
	v.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	v.must(err)
	defer f.Close()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	v.must(err)
	defer func() { v.must(unix.Munmap(b)) }()
	const blocks = 64
	start, n := time.Now(), 0
	for ; time.Since(start) < long; n++ {
		if _, err := f.WriteAt(b, int64(n%blocks*size)); err != nil {
			v.t.Fatal(err)
		}
	}
	return float64(n) / time.Since(start).Seconds()
}

func (v *volume) wantRate(what, path string, size int, want float64) {
	v.t.Helper()
	got := v.rate(path, size, 3*time.Second)
	v.t.Logf("%s: %.1f a second of %d bytes, the limit is %.1f", what, got, size, want)
	if got < 0.9*want || got > 1.1*want {
		v.t.Errorf("%s: %.1f a second of %d bytes, want %.1f", what, got, size, want)
	}
}

func TestLimits(t *testing.T) {
	for _, name := range []string{"ext4", "block"} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t, newService(t), kinds[name](), 384*mib)
			o := newObject(v, &v1alpha1.VolumeLimits{IOPS: 200})
			v.must(v.stage(), v.publish("a", false))
			path := v.dataPath("a")
			if name != "block" {
				v.must(os.WriteFile(path, make([]byte, 8*mib), 0o600))
				v.sync(path)
			}
			before, err := mount.At(v.target("a"))
			v.must(err)
			v.wantRate("with the first limits", path, 4096, 200)
			o.setLimits(&v1alpha1.VolumeLimits{WriteBandwidth: 4 * mib})
			v.wantRate("changed live", path, 64<<10, 64)
			o.setLimits(&v1alpha1.VolumeLimits{WriteIOPS: 50, Bandwidth: 100 * mib})
			v.wantRate("changed again", path, 4096, 50)
			if after, err := mount.At(v.target("a")); err != nil || after != before {
				t.Errorf("mounted anew: %+v, %+v, %v", before, after, err)
			}
			o.reconcile()
			if got := o.get().Status; got.ThrottledMillis < 3000 || got.Limits == nil || got.Limits.WriteIOPS != 50 {
				t.Errorf("status %+v, of a volume that waited for most of 9 s", got)
			}
			v.down("a")
			// A stage needs no API server for them.
			v.s = newService(t)
			v.must(v.stage(), v.publish("a", false))
			v.wantRate("after the next stage", path, 4096, 50)
			o.setLimits(nil)
			if got := v.rate(path, 4096, time.Second); got < 100 {
				t.Errorf("%.1f a second without limits", got)
			}
			v.down("a")
		})
	}
}

// sync writes a file's data to its disk.
func (v *volume) sync(path string) {
	v.t.Helper()
	f, err := os.Open(path)
	v.must(err)
	v.must(f.Sync(), f.Close())
}

func TestLimitsOfAnInlineVolume(t *testing.T) {
	v := newInline(t, newService(t), "ext4")
	v.attrs["writeIOPS"], v.attrs["bandwidth"], v.attrs["burst"] = "50", "1Mi", "1s"
	if err := errors.Join(v.publish(), v.publish()); err != nil {
		t.Fatal(err)
	}
	device, err := world.devices.Get(t.Context(), localID(v.id))
	want := serverclient.Limits{WriteIOPS: 50, Bytes: mib, Burst: time.Second}
	if err != nil || device.Limits != want {
		t.Errorf("%+v, %v; want %+v", device.Limits, err, want)
	}
	if err := v.unpublish(); err != nil {
		t.Error(err)
	}
	v.attrs["iops"] = "many"
	if err := v.publish(); driver.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `volumeAttributes["iops"] "many"`) {
		t.Errorf("a limit that is none: %v", err)
	}
}
