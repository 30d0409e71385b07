//go:build ublk

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// withTemplates makes a pool of that name in a directory of the default pool, with
// templates or without, and returns a service that has both.
func withTemplates(t testing.TB, name string, templates int) (*Service, *pool.Pool) {
	t.Helper()
	dir := filepath.Join(world.dir, "pools", "default", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	set, err := pool.NewSet([]pool.Options{{Name: name, Kind: pool.KindPath, StateDir: world.dir, Path: dir, MaxTemplates: templates}})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := set.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := opened[0].Close(); err != nil {
			t.Error(err)
		}
		// The server lets go of a volume's file a moment after the device.
		at := filepath.Join(world.dir, "pools", name)
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			err := unix.Unmount(at, 0)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("unmount %s: %v", at, err)
				return
			}
		}
	})
	s := newService(t)
	s.o.Pools = set
	return s, opened[0]
}

// templated is a volume in such a pool.
type templated struct {
	t       testing.TB
	s       *Service
	p       *pool.Pool
	id      string
	staging string
	cap     *csi.VolumeCapability
}

func newTemplated(t testing.TB, s *Service, p *pool.Pool, c *csi.VolumeCapability, size int64) *templated {
	t.Helper()
	serial.Lock()
	serial.n++
	id := fmt.Sprintf("t%d", serial.n)
	serial.Unlock()
	if err := p.Create(id, size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Delete(id); err != nil {
			t.Error(err)
		}
	})
	return &templated{t: t, s: s, p: p, id: id, staging: filepath.Join(t.TempDir(), "staging"), cap: c}
}

func (v *templated) stage() error {
	_, err := v.s.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.cap, VolumeContext: map[string]string{"pool": v.p.Name()},
	})
	return err
}

func (v *templated) unstage() error {
	_, err := v.s.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	return err
}

func (v *templated) must(errs ...error) {
	v.t.Helper()
	if err := errors.Join(errs...); err != nil {
		v.t.Fatal(err)
	}
}

func (s *Service) histogram(t testing.TB, p phase) *dto.Histogram {
	t.Helper()
	var m dto.Metric
	if err := s.phases.WithLabelValues(string(p), "").(prometheus.Histogram).Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram()
}

// times says how often a phase was run.
func (s *Service) times(t testing.TB, p phase) uint64 { return s.histogram(t, p).GetSampleCount() }

func TestStageClones(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			s, p := withTemplates(t, "templated", 8)
			a, b := newTemplated(t, s, p, mountCapability(fsType), gib), newTemplated(t, s, p, mountCapability(fsType), gib)
			for round := range 2 {
				a.must(a.stage(), a.stage(), b.stage())
				for _, v := range []*templated{a, b} {
					want := bytes.Repeat([]byte(v.id), mib)
					file := filepath.Join(v.staging, "file")
					if round == 0 {
						v.must(os.WriteFile(file, want, 0o600))
					}
					if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
						t.Errorf("round %d: %s reads other bytes (%v)", round, v.id, err)
					}
				}
				a.must(a.unstage(), b.unstage())
			}
			if clones, mkfs, checks := s.times(t, phaseClone), s.times(t, phaseMkfs), s.times(t, phaseFsck); clones != 2 || mkfs != 0 || checks != 2 {
				t.Errorf("%d clones, %d mkfs, %d fsck; want 2, 0 and those of the second round", clones, mkfs, checks)
			}
			var uuids []string
			for _, v := range []*templated{a, b} {
				content, err := blockdev.Probe(t.Context(), p.VolumePath(v.id))
				v.must(err)
				uuids = append(uuids, content.UUID)
			}
			if uuids[0] == uuids[1] || uuids[0] == "" {
				t.Errorf("UUIDs %q", uuids)
			}
		})
	}
}

// What is not proven never written, or is not to have a file system, keeps its file.
func TestWhatIsNotCloned(t *testing.T) {
	s, p := withTemplates(t, "templated", 8)
	inode := func(v *templated) uint64 {
		var st unix.Stat_t
		v.must(unix.Stat(p.VolumePath(v.id), &st))
		return st.Ino
	}
	kept := func(t *testing.T, v *templated, code codes.Code) {
		t.Helper()
		before := inode(v)
		err := v.stage()
		if got := driver.Code(err); got != code {
			t.Errorf("stage: %v, want %v", err, code)
		}
		if inode(v) != before {
			t.Error("the volume's file was replaced")
		}
		v.must(v.unstage())
	}
	t.Run("a raw block volume", func(t *testing.T) {
		kept(t, newTemplated(t, s, p, blockCapability(), 64*mib), codes.OK)
	})
	t.Run("data where no probe looks", func(t *testing.T) {
		v := newTemplated(t, s, p, mountCapability("ext4"), 64*mib)
		f, err := os.OpenFile(p.VolumePath(v.id), os.O_RDWR, 0)
		v.must(err)
		_, err = f.WriteAt([]byte("data"), 32*mib)
		v.must(err, f.Close())
		kept(t, v, codes.OK)
	})
	t.Run("a mkfs that was cut short", func(t *testing.T) {
		v := newTemplated(t, s, p, mountCapability("ext4"), 64*mib)
		boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		mark := filepath.Join(world.dir, "formatting", v.id)
		v.must(err, os.MkdirAll(filepath.Dir(mark), 0o700), os.WriteFile(mark, bytes.TrimSpace(boot), 0o600))
		kept(t, v, codes.OK)
	})
	t.Run("too small", func(t *testing.T) {
		v := newTemplated(t, s, p, mountCapability("xfs"), 64*mib)
		kept(t, v, codes.OutOfRange)
	})
	t.Run("attached already", func(t *testing.T) {
		v := newTemplated(t, s, p, blockCapability(), 64*mib)
		v.must(v.stage())
		v.cap = mountCapability("ext4")
		kept(t, v, codes.OK)
	})
	if got := s.times(t, phaseClone); got != 0 {
		t.Errorf("%d clones were tried", got)
	}
}

func TestTemplateThatCannotBeMade(t *testing.T) {
	s, p := withTemplates(t, "templated", 8)
	real, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\nfor a; do case $a in -V) echo broken; exit;; /proc/*) echo no template today; exit 1;; esac; done\nexec " + real + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "mkfs.ext4"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for range 2 {
		v := newTemplated(t, s, p, mountCapability("ext4"), 64*mib)
		v.must(v.stage(), v.unstage())
	}
	var m dto.Metric
	if err := s.fallbacks.Write(&m); err != nil || m.GetCounter().GetValue() != 2 || s.times(t, phaseMkfs) != 2 {
		t.Errorf("fallbacks %v, mkfs %d, %v", m.GetCounter(), s.times(t, phaseMkfs), err)
	}
}

func TestManyClonesAtOnce(t *testing.T) {
	s, p := withTemplates(t, "templated", 8)
	const n = 40
	var wg sync.WaitGroup
	for range n {
		v := newTemplated(t, s, p, mountCapability("ext4"), 48*mib)
		wg.Go(func() {
			if err := errors.Join(v.stage(), v.unstage()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if clones, mkfs := s.times(t, phaseClone), s.times(t, phaseMkfs); clones != n || mkfs != 0 {
		t.Errorf("%d clones, %d mkfs", clones, mkfs)
	}
}

// A stage of a new volume of 1 GiB, the device included, and the mean of its phases.
func BenchmarkStage(b *testing.B) {
	for _, fsType := range []string{"ext4", "xfs"} {
		for name, templates := range map[string]int{"mkfs": 0, "clone": 8} {
			b.Run(fsType+"/"+name, func(b *testing.B) {
				s, p := withTemplates(b, "bench-"+name, templates)
				one := func() {
					b.StopTimer()
					v := newTemplated(b, s, p, mountCapability(fsType), gib)
					b.StartTimer()
					if err := v.stage(); err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					v.must(v.unstage(), os.Remove(p.VolumePath(v.id)))
					_, _ = p.Size(v.id) // it counts no longer
					b.StartTimer()
				}
				one() // makes the template
				b.ResetTimer()
				s.phases.Reset()
				for range b.N {
					one()
				}
				for _, p := range []phase{phaseClone, phaseAttach, phaseProbe, phaseMkfs, phaseMount} {
					if h := s.histogram(b, p); h.GetSampleCount() > 0 {
						b.ReportMetric(1000*h.GetSampleSum()/float64(h.GetSampleCount()), "ms/"+string(p))
					}
				}
			})
		}
	}
}
