//go:build ublk

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// inline is one inline volume of a pod, by the id and the path that kubelet gives
// such a volume.
type inline struct {
	t      *testing.T
	s      *Service
	id     string
	target string
	fsType string
	attrs  map[string]string
}

func newInline(t *testing.T, s *Service, fsType string) *inline {
	t.Helper()
	serial.Lock()
	serial.n++
	n := serial.n
	serial.Unlock()
	v := &inline{t: t, s: s, id: "csi-" + strings.Repeat(fmt.Sprintf("%04x", n), 16), fsType: fsType,
		target: filepath.Join(t.TempDir(), "scratch", "mount"), attrs: map[string]string{"size": "512Mi"}}
	if err := os.Mkdir(filepath.Dir(v.target), 0o750); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.isGone)
	return v
}

func (v *inline) publish() error {
	context_ := map[string]string{"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "p"}
	for key, value := range v.attrs {
		context_[key] = value
	}
	c := mountCapability(v.fsType)
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	_, err := v.s.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
		VolumeId: v.id, TargetPath: v.target, VolumeCapability: c, VolumeContext: context_,
	})
	return err
}

func (v *inline) unpublish() error {
	_, err := v.s.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target})
	return err
}

// isGone looks for everything that a volume is made of.
func (v *inline) isGone() {
	v.t.Helper()
	id := localID(v.id)
	if _, err := world.devices.Get(context.Background(), id); driver.Code(err) != codes.NotFound {
		v.t.Errorf("the device server answers %v for %s, want not found", err, id)
	}
	if _, err := os.Lstat(world.pool.VolumePath(id)); !errors.Is(err, os.ErrNotExist) {
		v.t.Errorf("its file is left (%v)", err)
	}
	if _, err := os.Lstat(v.target); !errors.Is(err, os.ErrNotExist) {
		v.t.Errorf("its target path is left (%v)", err)
	}
	if _, ok := world.pool.Ephemeral(id); ok {
		v.t.Error("the pool still knows it")
	}
}

func TestInlineLife(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			v := newInline(t, newService(t), fsType)
			before, _ := world.pool.Usage()
			for range 2 {
				if err := errors.Join(v.publish(), v.publish()); err != nil {
					t.Fatal(err)
				}
				if got, err := mount.FSType(v.target); got != fsType {
					t.Errorf("file system %s, %v", got, err)
				}
				file := filepath.Join(v.target, "file")
				if _, err := os.Lstat(file); !errors.Is(err, os.ErrNotExist) {
					t.Error("it holds what its predecessor did")
				}
				if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
					t.Error(err)
				}
				during, _ := world.pool.Usage()
				if got := during.EphemeralBytes - before.EphemeralBytes; got != 512*mib {
					t.Errorf("it counts as %d ephemeral bytes", got)
				}
				stats, err := v.s.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.target})
				if err != nil || stats.Usage[0].Total > 512*mib {
					t.Errorf("stats %v, %v", stats, err)
				}
				if err := errors.Join(v.unpublish(), v.unpublish()); err != nil {
					t.Fatal(err)
				}
				v.isGone()
			}
			if after, _ := world.pool.Usage(); after.PromisedBytes != before.PromisedBytes || after.EphemeralBytes != before.EphemeralBytes {
				t.Errorf("usage %+v before, %+v after", before, after)
			}
		})
	}
}

func TestInlineVolumesThatCanNotBe(t *testing.T) {
	s := newService(t)
	taken := newVolume(t, s, mountCapability("ext4"), 64*mib)
	for name, c := range map[string]struct {
		change func(*inline)
		code   codes.Code
	}{
		"an unknown attribute":    {func(v *inline) { v.attrs["seize"] = "1Gi" }, codes.InvalidArgument},
		"no size":                 {func(v *inline) { v.attrs["size"] = "much" }, codes.InvalidArgument},
		"a negative size":         {func(v *inline) { v.attrs["size"] = "-1Gi" }, codes.InvalidArgument},
		"a pool that is not":      {func(v *inline) { v.attrs["pool"] = "other" }, codes.FailedPrecondition},
		"more than there is":      {func(v *inline) { v.attrs["size"] = "100Ti" }, codes.ResourceExhausted},
		"xfs in 100 MiB":          {func(v *inline) { v.fsType, v.attrs["size"] = "xfs", "100Mi" }, codes.OutOfRange},
		"a file system of others": {func(v *inline) { v.fsType = "zfs" }, codes.InvalidArgument},
		"a persistent volume's id": {func(v *inline) {
			v.id = taken.id
		}, codes.AlreadyExists},
		"a mount option that is not": {func(v *inline) { v.attrs["queues"] = "many" }, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			v := newInline(t, s, "ext4")
			clean := v.id
			c.change(v)
			if err := v.publish(); driver.Code(err) != c.code {
				t.Errorf("answers %v (%v), want %v", driver.Code(err), err, c.code)
			}
			v.id = clean
		})
	}
	if size, err := world.pool.Size(taken.id); err != nil || size != 64*mib {
		t.Errorf("the persistent volume has %d bytes, %v", size, err)
	}
}

// A plugin that is killed leaves a volume at any stage; the next one finds it by
// the mark of its file.
func TestInlineVolumesLeftBehindAreSweptUp(t *testing.T) {
	s := newService(t)
	wanted, orphan, former, half := newInline(t, s, "ext4"), newInline(t, s, "ext4"), newInline(t, s, "ext4"), newInline(t, s, "xfs")
	if err := errors.Join(wanted.publish(), orphan.publish()); err != nil {
		t.Fatal(err)
	}
	// Kubelet's directory was made anew: the pod is gone without a word.
	if err := errors.Join(unix.Unmount(orphan.target, 0), os.RemoveAll(filepath.Dir(orphan.target))); err != nil {
		t.Fatal(err)
	}
	// Made before the machine was booted.
	if err := world.pool.CreateEphemeral(localID(former.id), 512*mib, pool.Ephemeral{Target: former.target, BootID: "an earlier boot"}); err != nil {
		t.Fatal(err)
	}
	// Begun, and kubelet will try again.
	if err := world.pool.CreateEphemeral(localID(half.id), 512*mib, pool.Ephemeral{Target: half.target, BootID: s.bootID}); err != nil {
		t.Fatal(err)
	}
	removed, err := newService(t).Sweep(context.Background(), "default")
	if err != nil || len(removed) != 2 {
		t.Errorf("swept %v (%v), want the orphan and the former one", removed, err)
	}
	orphan.isGone()
	if mark, ok := world.pool.Ephemeral(localID(half.id)); !ok {
		t.Errorf("the one that was begun is gone (%v)", mark)
	}
	if err := half.publish(); err != nil {
		t.Errorf("going on with one that was begun: %v", err)
	}
	if err := os.WriteFile(filepath.Join(wanted.target, "file"), nil, 0o600); err != nil {
		t.Errorf("the one in use: %v", err)
	}
	if err := errors.Join(wanted.unpublish(), half.unpublish(), former.publish(), former.unpublish()); err != nil {
		t.Error(err)
	}
}

func TestManyInlineVolumesAtOnce(t *testing.T) {
	s := newService(t)
	var wg sync.WaitGroup
	for n := range 32 {
		v := newInline(t, s, "ext4")
		v.attrs["size"] = "64Mi"
		wg.Go(func() {
			if err := v.publish(); err != nil {
				t.Errorf("volume %d: %v", n, err)
				return
			}
			if err := os.WriteFile(filepath.Join(v.target, "n"), []byte{byte(n)}, 0o600); err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(filepath.Join(v.target, "n")); err != nil || len(b) != 1 || b[0] != byte(n) {
				t.Errorf("volume %d reads %v, %v", n, b, err)
			}
			if err := v.unpublish(); err != nil {
				t.Errorf("volume %d: %v", n, err)
			}
		})
	}
	wg.Wait()
}
