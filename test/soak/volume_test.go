//go:build soak && linux

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// A volume goes through the life that kubelet gives it. Persistent ones get their
// file from here, as the node's reconciler would make it.
type volume struct {
	n      *node
	id     string
	pool   string
	fsType string // "" is raw
	inline bool
	bytes  int64
	pod    string // directory, as kubelet makes it
	rand   *rand.Rand

	holder *holder // who has its disk open, or nil
}

// local is the id that the node knows it by.
func (v *volume) local() string {
	if v.inline {
		return driver.VolumeID(v.id)
	}
	return v.id
}

func (v *volume) staging() string { return filepath.Join(v.pod, "staging") }
func (v *volume) target() string  { return filepath.Join(v.pod, "volume", "mount") }
func (v *volume) file() string    { return v.n.path("pools/" + v.pool + "/volumes/" + v.id) }

func (v *volume) String() string {
	kind := "raw"
	if v.fsType != "" {
		kind = v.fsType
	}
	if v.inline {
		kind = "inline " + kind
	}
	return fmt.Sprintf("volume %s (%s, pool %s)", v.id, kind, v.pool)
}

func (v *volume) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if v.fsType == "" {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: v.fsType}}
	}
	return c
}

// makeDirs does kubelet's part.
func (v *volume) makeDirs() error {
	err := os.MkdirAll(filepath.Dir(v.target()), 0o750)
	if err != nil || v.inline {
		return err
	}
	return os.MkdirAll(v.staging(), 0o750)
}

func (v *volume) create() error {
	if err := v.makeDirs(); err != nil || v.inline {
		return err
	}
	f, err := os.Create(v.file())
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(v.bytes), f.Close())
}

func (v *volume) up() error {
	attrs := map[string]string{"pool": v.pool}
	if v.inline {
		attrs["csi.storage.k8s.io/ephemeral"] = "true"
		attrs["size"] = fmt.Sprint(v.bytes)
	} else if err := v.stage(); err != nil {
		return err
	}
	return v.call("publish", func(ctx context.Context) error {
		r := &csi.NodePublishVolumeRequest{VolumeId: v.id, TargetPath: v.target(), VolumeCapability: v.capability(), VolumeContext: attrs}
		if !v.inline {
			r.StagingTargetPath = v.staging()
		}
		_, err := v.n.csi.NodePublishVolume(ctx, r)
		return err
	})
}

func (v *volume) down() error {
	v.holder = nil
	if v.rand.IntN(8) == 0 {
		v.holder = v.hold()
		defer v.holder.over()
	}
	if !v.inline && v.rand.IntN(8) == 0 {
		if err := v.downAtOnce(); err != nil {
			return err
		}
	}
	err := v.call("unpublish", v.unpublish)
	if err != nil || v.inline {
		return err
	}
	return v.call("unstage", v.unstage)
}

func (v *volume) unpublish(ctx context.Context) error {
	_, err := v.n.csi.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target()})
	return err
}

func (v *volume) unstage(ctx context.Context) error {
	_, err := v.n.csi.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging()})
	return err
}

// remove ends the volume. The plugin, which did not remove the file itself, sees
// that it is gone when it is to stage it.
func (v *volume) remove() error {
	if !v.inline {
		if err := os.Remove(v.file()); err != nil {
			return err
		}
		err := v.stage()
		if status.Code(err) != codes.NotFound {
			return fmt.Errorf("stage of a volume without a file: %v, want not found", err)
		}
	}
	return os.RemoveAll(v.pod)
}

func (v *volume) stage() error {
	return v.call("stage", func(ctx context.Context) error {
		_, err := v.n.csi.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: v.id, StagingTargetPath: v.staging(), VolumeCapability: v.capability(), VolumeContext: map[string]string{"pool": v.pool}})
		return err
	})
}

// patience is how long a call may be repeated, as kubelet would, and one try of it take.
var (
	patience  = enough(4*time.Minute, 20*time.Minute)
	callLimit = enough(90*time.Second, 5*time.Minute)
)

// enough is a figure for a machine, or for one that is emulated and so has a
// twentieth of the speed.
func enough[T any](usual, emulated T) T {
	if os.Getenv("CSI_UBLK_ACCEL") == "tcg" {
		return emulated
	}
	return usual
}

// call makes a call of kubelet's, and repeats it until it is answered. Now and then it
// is cut short, by its deadline or by whoever made it, or made twice at once.
func (v *volume) call(what string, call func(context.Context) error) error {
	deadline := time.Now().Add(patience)
	for {
		short := time.Duration(1+v.rand.IntN(200)) * time.Millisecond
		timeout := callLimit
		if v.rand.IntN(16) == 0 {
			timeout = short
		}
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		if v.rand.IntN(16) == 0 {
			time.AfterFunc(short, cancel)
		}
		spells := v.n.failing.spells.Load()
		double := make(chan error, 1)
		if v.rand.IntN(8) == 0 {
			go func() { double <- call(ctx) }()
		} else {
			close(double)
		}
		err := call(ctx)
		second := <-double
		cancel()
		for _, e := range []error{err, second} {
			if e != nil && !again(e) && !v.excused(e) && !v.failing(spells) {
				return fmt.Errorf("%s: %w", what, e)
			}
		}
		if err == nil && second == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s, repeated for %v: %w", what, patience, errors.Join(err, second))
		}
		time.Sleep(time.Duration(20+v.rand.IntN(80)) * time.Millisecond)
	}
}

// excused says whether an error is what must be answered while the disk is held.
func (v *volume) excused(err error) bool { return v.holder.refused(err) }

// failing says whether the disk below the volume has failed at any time since there
// had been so many spells.
func (v *volume) failing(spells int64) bool {
	return v.pool == "failing" && v.n.failing.excuses(spells)
}

// again says whether kubelet's next try may succeed, while processes are killed and
// calls cut short.
func again(err error) bool {
	switch driver.Code(err) {
	case codes.Aborted, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted:
		return true
	}
	return false
}
