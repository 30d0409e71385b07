//go:build soak && linux

package soak

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// copied cuts the volume, whoever writes it, and lives the life of what is restored
// from that beside it. It does what the node's reconcilers do without an API server:
// the file system is frozen for the cut, the device server clones the file, and the
// copy is marked as one.
func (v *volume) copied(s *shadow, r *rand.Rand) (err error) {
	c := &volume{n: v.n, id: v.local() + "-copy", pool: v.pool, fsType: v.fsType, bytes: v.bytes, pod: v.pod + "-copy", rand: r}
	defer func() {
		if err != nil {
			err = fmt.Errorf("its copy: %w", err)
		}
	}()
	m, err := v.cut(s, c.file(), r)
	if err != nil {
		return err
	}
	if err := c.makeDirs(); err != nil {
		return err
	}
	if err := c.up(); err != nil {
		return err
	}
	if err := c.useCopy(m, s.id, int64(len(m.blocks))*blockBytes); err != nil {
		return err
	}
	if err := c.down(); err != nil {
		return err
	}
	return c.remove()
}

func (v *volume) useCopy(m *moment, source string, size int64) (err error) {
	f, err := v.open(size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s, err := m.settle(f, source, v.rand)
	if err != nil {
		return err
	}
	if err := s.write(f, v.rand); err != nil {
		return err
	}
	return s.check(f, v.rand)
}

// cut is tried until it is one: each try is of another moment.
func (v *volume) cut(s *shadow, target string, r *rand.Rand) (*moment, error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Duration(20+r.IntN(80)) * time.Millisecond) {
		m := s.beginCut()
		err := v.cutOnce(target)
		s.endCut()
		switch {
		case err == nil:
			v.n.cuts.Add(1)
			return m, unix.Setxattr(target, "user.csi-ublk.twin", nil, 0)
		case !again(err):
			return nil, fmt.Errorf("cut: %w", err)
		case time.Now().After(deadline):
			return nil, fmt.Errorf("cut, tried for %v: %w", patience, err)
		}
	}
}

// cutBound is the longest that a file system may stay frozen.
const cutBound = 10 * time.Second

func (v *volume) cutOnce(target string) (err error) {
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), cutBound)
	defer cancel()
	if v.fsType != "" {
		// A freeze that came too late is undone when it comes, and not during this cut.
		if _, err := os.Stat(filepath.Join(v.n.path("marks"), v.local())); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, context.DeadlineExceeded)
		}
		d, err := v.n.device.Get(ctx, v.local())
		if err != nil {
			return err
		}
		thaw, err := v.n.freezer.Freeze(ctx, v.local(), unix.Mkdev(d.Major, d.Minor))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, thaw()) }()
	}
	_, err = v.n.device.Cut(ctx, []client.Copy{{VolumeID: v.local(), TargetPath: target}})
	return err
}
