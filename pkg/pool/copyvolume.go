package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// SmallerError says that a volume was to be smaller than what it is a copy of. It
// matches syscall.ERANGE.
type SmallerError struct {
	ID                       string
	SourceBytes, WantedBytes int64
}

func (e *SmallerError) Error() string {
	return fmt.Sprintf("volume %s: its source has %d bytes, and %d were asked for; a copy is as large as its source, or larger", e.ID, e.SourceBytes, e.WantedBytes)
}

func (e *SmallerError) Is(target error) bool { return target == unix.ERANGE }

// CopyToVolume begins a volume of sizeBytes that is a copy: its first bytes are the
// source's, the rest reads zeros. It counts with its full size. The file system on
// it is the source's twin; see Twin.
//
// The error is a *NoReflinkError or a *FullError, or matches fs.ErrExist if the
// volume exists; that of Finish is a *SmallerError if the source is larger.
func (p *Pool) CopyToVolume(id string, sizeBytes int64) (*Copy, error) {
	if err := checkNew(id, sizeBytes); err != nil {
		return nil, err
	}
	if !p.reflink {
		return nil, &NoReflinkError{p.o.Name, p.fsType}
	}
	if _, err := p.Size(id); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, fmt.Errorf("create volume %s in pool %s: it exists: %w", id, p.o.Name, fs.ErrExist))
	}
	if err := p.reserve(id, sizeBytes); err != nil {
		return nil, err
	}
	release, made := func() { p.release(id) }, func() { p.endMaking(id) }
	c, err := p.beginCopy("volume", id, release, made)
	if err != nil {
		release()
		made()
		return nil, fmt.Errorf("create volume %s in pool %s: %w", id, p.o.Name, err)
	}
	c.finish = func() error { return p.finishVolume(c, sizeBytes) }
	return c, nil
}

func (p *Pool) finishVolume(c *Copy, sizeBytes int64) error {
	st, err := c.f.Stat()
	if err != nil {
		return err
	}
	if st.Size() > sizeBytes {
		return &SmallerError{ID: c.id, SourceBytes: st.Size(), WantedBytes: sizeBytes}
	}
	if err := c.f.Truncate(sizeBytes); err != nil {
		return fmt.Errorf("set size %d: %w", sizeBytes, err)
	}
	// Before it has its name: nobody sees the volume without the mark.
	if err := unix.Fsetxattr(int(c.f.Fd()), twinAttr, nil, 0); err != nil {
		return fmt.Errorf("mark as a copy: %w", err)
	}
	return c.place(p.volumes, &p.volumesSync)
}

// twinAttr is on the file of a volume whose file system, if it has one, still has
// its source's UUID.
const twinAttr = "user.csi-ublk.twin"

// Twin says whether a volume is a copy whose file system has its source's UUID
// still: it needs another one before it is mounted beside it.
func (p *Pool) Twin(id string) (bool, error) {
	f, err := p.openVolume(id)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = unix.Fgetxattr(int(f.Fd()), twinAttr, nil)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the mark of volume %s: %w", id, err)
	}
	return true, nil
}

// NotTwin takes the mark of Twin away, and returns when that is durable.
func (p *Pool) NotTwin(id string) error {
	f, err := p.openVolume(id)
	if err != nil {
		return err
	}
	defer f.Close()
	return removeTwinMark(f)
}

func removeTwinMark(f *os.File) error {
	if err := unix.Fremovexattr(int(f.Fd()), twinAttr); err != nil && !errors.Is(err, unix.ENODATA) {
		return fmt.Errorf("take off the mark of volume %s: %w", f.Name(), err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync volume %s: %w", f.Name(), err)
	}
	return nil
}
