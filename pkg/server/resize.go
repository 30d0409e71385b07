package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

var (
	// errNoResize: the size of a device can't change while it is there.
	errNoResize = errors.New("this kernel can't change the size of a device in use (UPDATE_SIZE, Linux 6.16): detach the volume and attach it again")
	// errShrunk: a disk never gets smaller under its user.
	errShrunk = errors.New("the file is smaller than the device")
)

// resizeLimit bounds a resize, a control command included.
const resizeLimit = time.Minute

// resize makes the volume's device as large as its file and returns its size, 0 without a
// device. The worker needs no word of it: it takes requests as they come, and the file's
// end where it finds it.
func (s *Server) resize(ctx context.Context, id string) (uint64, error) {
	v, err := s.takeLive(id, opResize)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return detached(ctx, s, resizeLimit, func(context.Context) (uint64, error) {
		defer s.end(v, opResize)
		size, err := s.grow(v)
		if err != nil {
			return 0, fmt.Errorf("resize volume %s: %w", id, err)
		}
		return uint64(size), nil
	})
}

func (s *Server) grow(v *volume) (int64, error) {
	b, err := s.backings.open(s.poolsDir, v.entry.Path, v.entry.ReadOnly)
	if err != nil {
		return 0, err
	}
	size, before := b.info.SizeBytes, v.entry.SizeBytes
	switch {
	case b.inode != v.entry.Inode:
		return 0, fmt.Errorf("%s is another file than the one that was attached", b.path)
	case size == before:
		return size, nil
	case size < before:
		return 0, fmt.Errorf("%s has %d bytes, device %d has %d: %w", b.path, size, v.info.ID, before, errShrunk)
	case !s.kernel.features().Has(ublk.UpdateSize):
		return 0, errNoResize
	}
	if err := s.kernel.updateSize(v.info.ID, size); err != nil {
		return 0, err
	}
	s.table.update(func() { v.entry.SizeBytes = size })
	if err := s.rejournal(v); err != nil {
		return 0, err
	}
	s.log.Info("volume grown", "volume", v.entry.Volume, "device", v.info.ID, "bytes", size, "before", before)
	return size, nil
}
