package pool

import (
	"errors"
	"fmt"
	"os"

	"github.com/csi-ublk/csi-ublk/pkg/pool/fsid"
	"golang.org/x/sys/unix"
)

// makeTemplateFile makes a template's file. It has no name until it is whole and
// durable, so that a crash leaves none behind, and is never opened to write again.
func (p *Pool) makeTemplateFile(name string, t Template, sizeBytes int64) error {
	dir := p.templates.dir
	f, err := unnamed(dir, name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(sizeBytes); err != nil {
		return fmt.Errorf("set size %d: %w", sizeBytes, err)
	}
	// By way of this process, since the file has no path of its own.
	if err := t.Make(p.templates.life, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())); err != nil {
		return err
	}
	if err := punchZeros(f); err != nil {
		return fmt.Errorf("make sparse: %w", err)
	}
	if err := fsid.Check(f, t.FSType, sizeBytes); err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o400), f.Sync()); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Size != sizeBytes {
		return fmt.Errorf("its size became %d bytes", st.Size)
	}
	u, err := p.Usage()
	if err != nil {
		return err
	}
	if room := u.AvailableBytes(); allocated(st) > room {
		return fmt.Errorf("it takes %d bytes, and %d are not promised to volumes: %w", allocated(st), room, unix.ENOSPC)
	}
	gone := p.keep(name, t, st)
	err = linkAs(f, dir, name)
	if err == nil {
		err = dir.Sync()
	}
	if err != nil {
		p.dropTemplate(name)
	}
	p.unlinkTemplates(gone...)
	p.changed()
	return err
}
