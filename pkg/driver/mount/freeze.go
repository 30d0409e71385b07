package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/csi-ublk/csi-ublk/pkg/pool/mountpoint"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Freezer holds mounted file systems still for a moment, clean on their devices.
// One that it has frozen is never forgotten: a mark is written before, and ThawAll
// of the next process thaws what is marked.
type Freezer struct {
	marks  string
	bootID string
	guard  Guard

	mu sync.Mutex
	// late are freezes that nobody waits for any more and that are not undone yet.
	late map[string]struct{}
}

// A Guard is told of a file system before it is frozen, by a directory of it, and thaws
// it if this process dies; release says that it is thawed.
type Guard func(ctx context.Context, dir *os.File) (release func(), err error)

// NewFreezer returns a Freezer that keeps its marks in dir, best on a tmpfs; it is
// made when needed. guard may be nil, and its errors stop no freeze: without it, what a
// process that died has frozen waits for ThawAll of the next.
func NewFreezer(dir string, guard Guard) (*Freezer, error) {
	id, err := BootID()
	if err != nil {
		return nil, err
	}
	if guard == nil {
		guard = func(context.Context, *os.File) (func(), error) { return func() {}, nil }
	}
	return &Freezer{marks: dir, bootID: id, guard: guard, late: make(map[string]struct{})}, nil
}

// ioctls of include/uapi/linux/fs.h.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// WriteBack writes to a device what its file system holds in memory, so that a freeze
// soon after has little to write while every writer waits. Where no file system of the
// device is mounted, there is nothing to do. ctx bounds the wait; the kernel goes on.
func (f *Freezer) WriteBack(ctx context.Context, device uint64) error {
	dir, err := mountOf(device)
	if dir == nil || err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer dir.Close()
		done <- unix.Syncfs(int(dir.Fd()))
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("write %s back: %w", dir.Name(), err)
	}
	return nil
}

// Freeze writes the file system of a device back and stops all that would change
// it, until thaw is called, which must be soon: every writer blocks. thaw may be
// called more than once, and again after an error. Where no file system of the device is
// mounted, or somebody else has frozen it, there is nothing to do, and nothing to thaw. id
// names the mark. ctx bounds the wait; a freeze that the kernel ends later is undone, and
// until then another one of that id is refused with context.DeadlineExceeded: they would
// thaw each other.
func (f *Freezer) Freeze(ctx context.Context, id string, device uint64) (thaw func() error, err error) {
	nothing := func() error { return nil }
	dir, err := mountOf(device)
	if dir == nil || err != nil {
		return nothing, err
	}
	// The kernel can't be told to stop once it has begun.
	err = ctx.Err()
	if f.isLate(id) {
		err = fmt.Errorf("the last try is not over: %w", context.DeadlineExceeded)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("freeze %s: %w", dir.Name(), err), dir.Close())
	}
	if err := f.mark(id, device); err != nil {
		return nil, errors.Join(fmt.Errorf("note that %s is to be frozen: %w", dir.Name(), err), dir.Close())
	}
	release, err := f.guard(ctx, dir)
	if err != nil {
		release = func() {}
	}
	undo := func() error {
		if err := f.thaw(id, dir); err != nil {
			return err // the guard stays
		}
		release()
		return dir.Close()
	}
	done := make(chan error, 1)
	go func() { done <- frozen(dir, fiFreeze) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		// It ends when the kernel is done, and undoes it.
		f.setLate(id, true)
		go func() {
			<-done
			_ = undo()
			f.setLate(id, false)
		}()
		return nil, fmt.Errorf("freeze %s: %w", dir.Name(), ctx.Err())
	}
	if errors.Is(err, unix.EBUSY) {
		release()
		return nothing, errors.Join(f.unmark(id), dir.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("freeze %s: %w", dir.Name(), err), undo())
	}
	return once(undo), nil
}

// once calls f until it has succeeded.
func once(f func() error) func() error {
	done := false
	return func() error {
		if done {
			return nil
		}
		err := f()
		done = err == nil
		return err
	}
}

// thaw thaws and then takes the mark away, in this order. What is not frozen is
// thawed.
func (f *Freezer) thaw(id string, dir *os.File) error {
	if err := frozen(dir, fiThaw); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("thaw %s: %w", dir.Name(), err)
	}
	return f.unmark(id)
}

// ThawAll thaws what an earlier process has left frozen. It is meant for the start,
// before anything that needs the file systems.
func (f *Freezer) ThawAll() error {
	marks, err := os.ReadDir(f.marks)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range marks {
		if err := f.thawMarked(m.Name()); err != nil {
			errs = append(errs, fmt.Errorf("file system of volume %s may be frozen: %w", m.Name(), err))
		}
	}
	return errors.Join(errs...)
}

func (f *Freezer) thawMarked(id string) error {
	text, err := os.ReadFile(filepath.Join(f.marks, id))
	if err != nil {
		return err
	}
	var major, minor uint32
	boot, device, _ := strings.Cut(string(text), " ")
	if _, err := fmt.Sscanf(device, "%d:%d", &major, &minor); err != nil || boot != f.bootID {
		return f.unmark(id) // cut short before the freeze, or nothing outlives a boot
	}
	dir, err := mountOf(unix.Mkdev(major, minor))
	if err != nil {
		return err
	}
	if dir == nil {
		return f.unmark(id)
	}
	return errors.Join(f.thaw(id, dir), dir.Close())
}

func (f *Freezer) mark(id string, device uint64) error {
	if err := os.MkdirAll(f.marks, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(f.marks, id), fmt.Appendf(nil, "%s %d:%d", f.bootID, unix.Major(device), unix.Minor(device)), 0o600)
}

func (f *Freezer) unmark(id string) error {
	if err := os.Remove(filepath.Join(f.marks, id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (f *Freezer) isLate(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, late := f.late[id]
	return late
}

func (f *Freezer) setLate(id string, late bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if late {
		f.late[id] = struct{}{}
	} else {
		delete(f.late, id)
	}
}

func frozen(dir *os.File, request uint) error { return unix.IoctlSetInt(int(dir.Fd()), request, 0) }

// mountOf opens the root of a mount of a device's file system; nil if there is
// none here.
func mountOf(device uint64) (*os.File, error) {
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		// The number of a Btrfs there is not its device's; it is asked below.
		return i.FSType != "btrfs" && (i.Major != int(unix.Major(device)) || i.Minor != int(unix.Minor(device))), false
	})
	if err != nil {
		return nil, fmt.Errorf("read mountinfo: %w", err)
	}
	var hidden string
	for _, m := range mounts {
		at, err := mountpoint.At(m.Mountpoint)
		if err == nil && at.IsDir() && at.Device == device {
			return os.Open(m.Mountpoint)
		}
		if m.FSType != "btrfs" {
			hidden = m.Mountpoint // below another mount
		}
	}
	if hidden != "" {
		return nil, fmt.Errorf("the file system at %s can't be reached", hidden)
	}
	return nil, nil
}
