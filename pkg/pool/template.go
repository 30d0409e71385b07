package pool

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/csi-ublk/csi-ublk/pkg/pool/fsid"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// Template is a file system from which volumes are cloned.
type Template struct {
	FSType string
	// Recipe is all that decides what Make writes: program, version, options.
	// Templates of other recipes are stale.
	Recipe string
	// Make makes the file system in the regular file at path, which has its size
	// and holds nothing. It runs once for all volumes of a size that want it, for
	// as long as the pool is open, whoever waits.
	Make func(ctx context.Context, path string) error
}

// templateFormat goes into the names: raise it when what is done to a template
// after Make changes.
const templateFormat = "1"

// name is <fs>-<hash of the recipe>-<size>.
func (t Template) name(sizeBytes int64) string {
	return t.generation() + strconv.FormatInt(sizeBytes, 10)
}

func (t Template) generation() string {
	sum := sha256.Sum256([]byte(templateFormat + "\x00" + t.Recipe))
	return fmt.Sprintf("%s-%x-", t.FSType, sum[:6])
}

// replaces says whether a template of this name is of an earlier recipe than t.
func (t Template) replaces(name string) bool {
	return strings.HasPrefix(name, t.FSType+"-") && !strings.HasPrefix(name, t.generation())
}

// ErrWritten says that a volume holds data, or may.
var ErrWritten = errors.New("the volume has been written")

// Templates says whether volumes of this pool can be cloned from templates.
func (p *Pool) Templates() bool { return p.reflink && p.o.MaxTemplates > 0 }

// NeverWritten says whether a volume's file holds no byte of data. It is the
// caller's to make sure that nobody writes.
func (p *Pool) NeverWritten(id string) (bool, error) {
	f, err := p.openVolume(id)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return allHoles(f)
}

// Clone replaces the file of a volume that was never written by a clone of a
// template, with a UUID of its own, and makes the template first if there is none
// of that size. At every instant, also of a crash, the volume is blank or has the
// whole file system; it is durable when Clone returns nil. The caller makes sure
// that nobody has the file open to write.
//
// The error matches ErrWritten if there is data, and errors.ErrUnsupported if the
// pool has no templates or the file system is not one that can be cloned. After
// any error the volume can be formatted as if Clone had not been called. ctx
// bounds the wait for a template that is being made.
func (p *Pool) Clone(ctx context.Context, id string, t Template) error {
	if !p.Templates() {
		return fmt.Errorf("pool %s keeps no templates: %w", p.o.Name, errors.ErrUnsupported)
	}
	volume, err := p.openVolume(id)
	if err != nil {
		return err
	}
	defer volume.Close()
	st, err := volume.Stat()
	if err != nil {
		return err
	}
	name := t.name(st.Size())
	template, err := p.openTemplate(ctx, name, t, st.Size())
	if err != nil {
		return fmt.Errorf("template %s of pool %s: %w", name, p.o.Name, err)
	}
	defer template.Close()
	if blank, err := allHoles(volume); err != nil || !blank {
		return errors.Join(err, fmt.Errorf("clone a template to volume %s: %w", id, ErrWritten))
	}
	clone, err := cloneOf(template, p.templates.dir)
	if err != nil {
		return fmt.Errorf("clone template %s: %w", name, err)
	}
	defer clone.Close()
	if err := fsid.Set(clone, t.FSType, st.Size(), uuid.New()); err != nil {
		// Damaged: the next volume has it made anew.
		p.dropTemplate(name)
		return fmt.Errorf("template %s is removed: %w", name, err)
	}
	if err := p.replaceVolume(id, clone); err != nil {
		return fmt.Errorf("replace volume %s: %w", id, err)
	}
	return nil
}

func (p *Pool) openVolume(id string) (*os.File, error) {
	if _, err := p.stat(id); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(p.volumes.Fd()), id, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open volume %s: %w", id, err)
	}
	return os.NewFile(uintptr(fd), id), nil
}

// cloneOf returns a file without a name that shares all extents with from.
func cloneOf(from, dir *os.File) (*os.File, error) {
	f, err := unnamed(dir, "clone")
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlFileClone(int(f.Fd()), int(from.Fd())); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// replaceVolume gives a file the name of a volume, which must exist, its mark and limits.
// A crash leaves the old or the new file, and perhaps a name that Open removes; an
// ephemeral volume need not survive a power cut.
func (p *Pool) replaceVolume(id string, f *os.File) error {
	if err := p.keepLimits(id, f); err != nil {
		return err
	}
	mark, ephemeral := p.Ephemeral(id)
	if ephemeral {
		if err := writeMark(f, &mark); err != nil {
			return err
		}
	}
	// A link can't replace a name; a rename can.
	dir, interim := int(p.templates.dir.Fd()), interimPrefix+id
	if err := linkAs(f, p.templates.dir, interim); err != nil {
		return err
	}
	if !ephemeral {
		// Only now: Btrfs before Linux 6.16 writes no file that has no name, and after a
		// power cut the name would be that of an empty one.
		if err := f.Sync(); err != nil {
			return errors.Join(err, unix.Unlinkat(dir, interim, 0))
		}
	}
	if err := unix.Renameat(dir, interim, int(p.volumes.Fd()), id); err != nil {
		return errors.Join(err, unix.Unlinkat(dir, interim, 0))
	}
	if ephemeral {
		return nil
	}
	// A write that is acknowledged later must not go with the name. (Where this
	// fails, the file system has shut down and takes no write.)
	return p.volumesSync.Sync()
}

// linkAs names a file that has no name. What has the name is removed first.
func linkAs(f, dir *os.File, name string) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return link(f, dir, name)
}
