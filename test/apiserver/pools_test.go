//go:build kube

package apiserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	volumerec "github.com/csi-ublk/csi-ublk/pkg/reconciler/volume"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// stuck is a device server with nothing attached, which does not answer for volumes
// whose names begin with "hung", as a call does that waits for a disk.
type stuck struct {
	volumerec.Devices
	free    chan struct{} // closed: answers for all
	waiting chan struct{} // gets one for each call that waits
}

func (s *stuck) Get(ctx context.Context, id string) (serverclient.Device, error) {
	if strings.HasPrefix(id, "hung") {
		select {
		case s.waiting <- struct{}{}:
			<-s.free
		case <-s.free:
		}
	}
	return serverclient.Device{}, status.Error(codes.NotFound, "not attached")
}

// More volumes of a pool wait for its disk than it has workers: those of another pool,
// and of one that the node does not have, are dealt with all the same.
func TestAPoolThatHangsKeepsNoOthersVolumes(t *testing.T) {
	const workers = 4
	n := newNode(t, "hanging", "sound", 1<<30)
	n.tell(func(n *node) { n.silent = true }) // its volumes are the reconciler's
	state := t.TempDir()
	var options []pool.Options
	for _, name := range []string{"hung", "sound"} {
		dir := filepath.Join(state, "pools", name) // where it would be mounted
		must(t, os.MkdirAll(dir, 0o700))
		options = append(options, pool.Options{Name: name, Kind: pool.KindPath, StateDir: state, Path: dir, SizeBytes: 1 << 30})
	}
	pools, err := pool.NewSet(options)
	must(t, err)
	opened, err := pools.Open(t.Context())
	must(t, err)
	for _, p := range opened {
		t.Cleanup(func() { p.Close() })
	}
	server := &stuck{free: make(chan struct{}), waiting: make(chan struct{}, 4*workers)}
	defer startVolumes(t, volumerec.Options{Node: n.name, Pools: pools, Devices: server, Locks: &driver.VolumeLocks{}, Workers: workers})()

	volume := func(name, pool string, state v1alpha1.VolumeState) *v1alpha1.UblkVolume {
		v := &v1alpha1.UblkVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.VolumeFinalizer}},
			Spec:       v1alpha1.UblkVolumeSpec{Node: n.name, Pool: pool, CapacityBytes: mib, CSIName: name, State: state},
		}
		must(t, api.Create(t.Context(), v))
		return v
	}
	condition := func(v *v1alpha1.UblkVolume, status metav1.ConditionStatus) func() bool {
		return func() bool {
			must(t, api.Get(t.Context(), client.ObjectKeyFromObject(v), v))
			return meta.IsStatusConditionPresentAndEqual(v.Status.Conditions, v1alpha1.VolumeReady, status)
		}
	}
	var hung []*v1alpha1.UblkVolume
	for i := range 2 * workers {
		hung = append(hung, volume(fmt.Sprintf("hung-%d", i), "hung", v1alpha1.VolumeAbsent))
	}
	for range workers {
		<-server.waiting
	}
	sound, stray := volume("sound", "sound", v1alpha1.VolumePresent), volume("stray", "elsewhere", v1alpha1.VolumePresent)
	eventually(t, "the volume of the other pool is made", condition(sound, metav1.ConditionTrue))
	eventually(t, "the volume without a pool says so", condition(stray, metav1.ConditionFalse))

	close(server.free)
	for _, v := range append(hung, sound, stray) {
		must(t, client.IgnoreNotFound(api.Delete(t.Context(), v)))
	}
	eventually(t, "all are gone", func() bool {
		left := volumesOf(t, n.name)
		return len(left) == 0 || len(left) == 1 && left[0].Name == "stray" // which waits for its pool
	})
	must(t, client.IgnoreNotFound(api.Patch(t.Context(), stray, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
}

// startVolumes runs a reconciler of volumes as the node's plugin does, until the function
// that it returns is called.
func startVolumes(t *testing.T, o volumerec.Options) (stop func()) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(t, err)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  api.Scheme(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.UblkVolume{}: {Field: fields.OneTermEqualSelector("spec.node", o.Node)},
		}},
	})
	must(t, err)
	o.Client = mgr.GetClient()
	must(t, volumerec.New(o).Setup(mgr))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
	}
}
