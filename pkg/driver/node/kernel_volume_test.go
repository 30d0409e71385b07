//go:build ublk

package node

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func TestFileSystemLife(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			v := newVolume(t, newService(t), mountCapability(fsType, "noatime"), gib)
			want := bytes.Repeat([]byte("data"), 2*mib)
			for round := range 2 {
				v.must(v.stage(), v.stage(), v.publish("a", false), v.publish("a", false), v.publish("b", true), v.publish("b", true))
				if got, err := mount.FSType(v.target("a")); got != fsType {
					t.Errorf("file system %s, %v", got, err)
				}
				file := filepath.Join(v.target("a"), "file")
				if round == 0 {
					v.must(os.WriteFile(file, want, 0o600))
				}
				if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
					t.Errorf("round %d reads other bytes (%v)", round, err)
				}
				if err := os.WriteFile(filepath.Join(v.target("b"), "file"), want, 0o600); !errors.Is(err, unix.EROFS) {
					t.Errorf("write through a read-only publish: %v", err)
				}
				v.checkStats("a", gib)
				v.must(v.unpublish("a"), v.unpublish("a"))
				v.down("b")
				v.must(v.unstage())
			}
		})
	}
}

func (v *volume) checkStats(pod string, size int64) {
	v.t.Helper()
	r, err := v.s.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.target(pod)})
	if err != nil {
		v.t.Error(err)
		return
	}
	if u := r.Usage[0]; u.Total < size*9/10-64*mib || u.Total > size {
		v.t.Errorf("usage %+v of a volume of %d bytes", u, size)
	}
	_, err = v.s.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.pods})
	v.wantCode("stats where nothing is mounted", err, codes.NotFound)
	_, err = v.s.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: "unknown", VolumePath: v.target(pod)})
	v.wantCode("stats of an unknown volume", err, codes.NotFound)
}

func TestBlockLife(t *testing.T) {
	v := newVolume(t, newService(t), blockCapability(), 64*mib)
	want := bytes.Repeat([]byte("data"), mib)
	for round := range 2 {
		v.must(v.stage(), v.stage(), v.publish("a", false), v.publish("a", false))
		f, err := os.OpenFile(v.target("a"), os.O_RDWR|unix.O_DIRECT, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if f, err = os.OpenFile(v.target("a"), os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			_, err := f.WriteAt(want, 4096)
			v.must(err, f.Sync())
		}
		got := make([]byte, len(want))
		if _, err := f.ReadAt(got, 4096); err != nil || !bytes.Equal(got, want) {
			t.Errorf("round %d reads other bytes (%v)", round, err)
		}
		v.must(f.Close())
		v.checkStats("a", 64*mib)
		v.down("a")
	}
}

func TestNothingIsOverwritten(t *testing.T) {
	s := newService(t)
	t.Run("another file system", func(t *testing.T) {
		v := newVolume(t, s, mountCapability("ext4"), gib)
		v.must(v.stage(), v.publish("a", false), os.WriteFile(filepath.Join(v.target("a"), "file"), []byte("data"), 0o600))
		v.down("a")
		v.cap = mountCapability("xfs")
		err := v.stage()
		v.wantCode("staged as xfs", err, codes.FailedPrecondition)
		if err == nil || !strings.Contains(err.Error(), "holds ext4") {
			t.Errorf("the error does not say what is there: %v", err)
		}
		if _, err := world.devices.Get(context.Background(), v.id); driver.Code(err) != codes.NotFound {
			t.Error("a stage that failed leaves the volume attached")
		}
		v.cap = mountCapability("ext4")
		v.must(v.stage(), v.publish("a", false))
		if got, err := os.ReadFile(filepath.Join(v.target("a"), "file")); err != nil || string(got) != "data" {
			t.Errorf("reads %q, %v", got, err)
		}
		v.down("a")
	})
	t.Run("raw data", func(t *testing.T) {
		v := newVolume(t, s, blockCapability(), 64*mib)
		v.must(v.stage(), v.publish("a", false))
		v.must(os.WriteFile(v.target("a"), []byte("a database without a signature"), 0))
		v.down("a")
		v.cap = mountCapability("ext4")
		v.wantCode("staged as ext4", v.stage(), codes.FailedPrecondition)
	})
}

func TestMkfsThatWasCutShort(t *testing.T) {
	s := newService(t)
	v := newVolume(t, s, blockCapability(), 64*mib)
	v.must(v.stage(), v.publish("a", false))
	v.must(os.WriteFile(v.target("a"), []byte("half a file system"), 0))
	v.down("a")
	// The mark that a mkfs leaves which began on a blank device and never ended.
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	v.must(err, os.MkdirAll(filepath.Join(world.dir, "formatting"), 0o700))
	mark := filepath.Join(world.dir, "formatting", v.id)
	v.must(os.WriteFile(mark, []byte("an earlier boot"), 0o600))
	v.cap = mountCapability("ext4")
	v.wantCode("with a mark of an earlier boot", v.stage(), codes.FailedPrecondition)
	v.must(os.WriteFile(mark, bytes.TrimSpace(boot), 0o600))
	v.must(v.stage())
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark is left: %v", err)
	}
	v.down()
}

func TestUncleanFileSystemIsRepaired(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		v := newVolume(t, newService(t), mountCapability(fsType), 512*mib)
		v.must(v.stage(), v.publish("a", false))
		v.must(os.WriteFile(filepath.Join(v.target("a"), "file"), []byte("data"), 0o600))
		dir, err := os.Open(v.target("a"))
		v.must(err, unix.Syncfs(int(dir.Fd())), dir.Close())
		// The volume as a power cut leaves it: a copy of the file while mounted.
		copied := world.pool.VolumePath(v.id) + "-copy"
		if out, err := exec.Command("cp", "--reflink=always", world.pool.VolumePath(v.id), copied).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		v.down("a")
		v.must(os.Rename(copied, world.pool.VolumePath(v.id)))
		v.must(v.stage(), v.publish("a", false))
		if got, err := os.ReadFile(filepath.Join(v.target("a"), "file")); err != nil || string(got) != "data" {
			t.Errorf("%s: reads %q, %v", fsType, got, err)
		}
		v.down("a")
	}
}

func TestAccessModes(t *testing.T) {
	s := newService(t)
	for name, c := range map[string]func() *csi.VolumeCapability{
		"mount": func() *csi.VolumeCapability { return mountCapability("ext4") },
		"block": blockCapability,
	} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t, s, c(), 64*mib)
			v.wantCode("published before staged", v.publish("a", false), codes.FailedPrecondition)
			v.must(v.stage(), v.publish("a", false))
			v.wantCode("the same target with other arguments", v.publish("a", true), codes.AlreadyExists)
			v.must(v.publish("b", false), v.unpublish("b"))
			v.cap = single(v.cap)
			v.must(v.publish("a", false))
			v.wantCode("a second target of a single writer", v.publish("b", false), codes.FailedPrecondition)
			// The plugin is replaced: the mount table knows.
			next := newService(t)
			v.s = next
			v.wantCode("a second target, asked of the next plugin", v.publish("b", false), codes.FailedPrecondition)
			v.down("a")
		})
	}
}

func TestUnstageWhilePublished(t *testing.T) {
	v := newVolume(t, newService(t), mountCapability("ext4"), 64*mib)
	v.must(v.stage(), v.publish("a", false))
	v.wantCode("unstaged under a pod", v.unstage(), codes.FailedPrecondition)
	v.must(os.WriteFile(filepath.Join(v.target("a"), "file"), bytes.Repeat([]byte("x"), mib), 0o600))
	v.must(v.stage())
	v.down("a")
}

// A raw volume's node at a pod would be another volume's, once the number is given away.
func TestUnstageOfARawVolumeWhilePublished(t *testing.T) {
	v := newVolume(t, newService(t), blockCapability(), 64*mib)
	v.must(v.stage(), v.publish("a", false))
	v.wantCode("unstaged under a pod", v.unstage(), codes.FailedPrecondition)
	v.s = newService(t)
	err := v.unstage()
	v.wantCode("unstaged under a pod, by the next plugin", err, codes.FailedPrecondition)
	if err == nil || !strings.Contains(err.Error(), v.target("a")) {
		t.Errorf("it does not say where it is published: %v", err)
	}
	f, err := os.OpenFile(v.target("a"), os.O_RDWR, 0)
	v.must(err)
	_, err = f.WriteAt(make([]byte, 4096), 0)
	v.must(err, f.Sync(), f.Close())
	v.down("a")
}

// A call that died has attached the device, and the next fails for good: kubelet does not
// unstage after that, and nobody else would give the device up.
func TestAStageThatFailsGivesUpTheDeviceOfAnEarlierOne(t *testing.T) {
	v := newVolume(t, newService(t), mountCapability("ext4"), 64*mib)
	a, err := parseAccess(v.cap)
	v.must(err)
	o, err := parseContext(map[string]string{"pool": "default"}, inContext)
	v.must(err)
	_, err = v.s.attach(t.Context(), v.id, a, o)
	v.must(err)
	v.cap = mountCapability("ext4", "no-such-option")
	if err := v.stage(); err == nil {
		t.Error("an unknown mount option was taken")
	}
	_, err = world.devices.Get(t.Context(), v.id)
	v.wantCode("the device after it", err, codes.NotFound)
}

// A device that is in use is not given up by a call that fails.
func TestAStageThatFailsLeavesWhatIsInUse(t *testing.T) {
	v := newVolume(t, newService(t), mountCapability("ext4"), 64*mib)
	v.must(v.stage(), v.publish("a", false))
	elsewhere := *v
	elsewhere.staging, elsewhere.cap = filepath.Join(v.pods, "elsewhere"), mountCapability("ext4", "no-such-option")
	if err := elsewhere.stage(); err == nil {
		t.Error("an unknown mount option was taken")
	}
	v.must(os.WriteFile(filepath.Join(v.target("a"), "file"), bytes.Repeat([]byte("x"), mib), 0o600))
	v.down("a")
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	s := newService(t)
	v := newVolume(t, s, mountCapability("xfs"), 64*mib)
	err := v.stage()
	v.wantCode("xfs on 64 MiB", err, codes.OutOfRange)
	if err == nil || !strings.Contains(err.Error(), "300Mi") {
		t.Errorf("no remedy in %v", err)
	}
	v.cap = mountCapability("ext4", "no-such-option")
	if err := v.stage(); err == nil || !strings.Contains(err.Error(), "option") {
		t.Errorf("an unknown mount option: %v", err)
	}
	v.id = "unknown"
	v.wantCode("an unknown volume", v.stage(), codes.NotFound)
	v.must(v.unstage())
	v.id = "Not/An.Id"
	v.wantCode("an id that is none of ours", v.stage(), codes.NotFound)
	v.must(v.unstage(), v.unpublish("a"))
}

// TestHealth asks for a volume's health in all that can become of it.
func TestHealth(t *testing.T) {
	s := newService(t)
	v := newVolume(t, s, mountCapability("ext4"), 64*mib)
	ask := func() (reasons []string) {
		t.Helper()
		r, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.id, StagingTargetPath: v.staging, VolumePublishPath: v.target("a")})
		v.must(err)
		for _, h := range r.VolumeHealth.HealthStatuses {
			reasons = append(reasons, h.Reason)
		}
		return reasons
	}
	if got := ask(); got != nil {
		t.Errorf("a volume that nobody uses: %v", got)
	}
	v.must(v.stage(), v.publish("a", false))
	if got := ask(); got != nil {
		t.Errorf("a volume in use: %v", got)
	}
	// Something is mounted there that is none of the device server's.
	v.down("a")
	v.must(os.MkdirAll(v.staging, 0o700), unix.Mount("tmpfs", v.staging, "tmpfs", 0, ""))
	if got := ask(); len(got) != 1 || got[0] != "DeviceGone" {
		t.Errorf("a mount without a device: %v", got)
	}
	v.must(unix.Unmount(v.staging, 0))
	_, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "unknown"})
	v.wantCode("an unknown volume", err, codes.NotFound)
	_, err = s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.id, StagingTargetPath: "not/absolute"})
	v.wantCode("a relative path", err, codes.InvalidArgument)
	r, err := s.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	v.must(err)
	if len(r.BackendHealth) != 0 {
		t.Errorf("a sound node: %v", r.BackendHealth)
	}
}

func TestManyAtOnce(t *testing.T) {
	s := newService(t)
	var wg sync.WaitGroup
	for i := range 24 {
		c := mountCapability("ext4")
		if i%3 == 2 {
			c = blockCapability()
		}
		v := newVolume(t, s, c, 32*mib)
		wg.Go(func() {
			for range 2 {
				if err := errors.Join(v.stage(), v.publish("a", false), v.unpublish("a"), v.unstage()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestServerIsRestarted(t *testing.T) {
	v := newVolume(t, newService(t), mountCapability("ext4"), 64*mib)
	v.must(v.stage(), v.publish("a", false))
	v.must(stopServer(os.Kill))
	done := make(chan error, 1)
	go func() {
		time.Sleep(500 * time.Millisecond)
		done <- startServer()
	}()
	// Publish needs no server; unstage waits for it.
	v.must(v.publish("b", false), v.unpublish("b"), v.unpublish("a"), v.unstage(), <-done)
	v.must(v.stage())
	v.down()
}

func TestNodeInfo(t *testing.T) {
	s := newService(t)
	r, err := s.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
	if err != nil || r.NodeId != "here" || r.MaxVolumesPerNode <= 0 || r.AccessibleTopology.Segments[driver.TopologyKey] != "here" {
		t.Errorf("%+v, %v", r, err)
	}
	s.o.MaxVolumes = 7
	if r, err := s.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{}); err != nil || r.MaxVolumesPerNode != 7 {
		t.Errorf("%+v, %v", r, err)
	}
}
