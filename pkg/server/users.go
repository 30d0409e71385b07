package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// users finds out who uses a disk, for kernels that don't say (TRY_STOP_DEV is
// new in 7.0). Opening the disk with O_EXCL would tell as well, but a server must
// not open what it serves: an open can wait for the disk, and this process would
// then wait for its own worker, and could not even be killed.
//
// It reads the mount tables and the open descriptors of every process, which
// takes the host's PID namespace. All who ask while a look is under way share
// the next one, so a hundred detaches cost two looks.
type users struct {
	proc string

	mu   sync.Mutex
	next *look // not begun yet; nil if nobody waits
	busy bool
}

// A look is one pass over all processes.
type look struct {
	done chan struct{}
	uses map[uint64]string // device number → the first use that was found
	err  error
}

func newUsers(proc string) *users { return &users{proc: proc} }

// of describes a use of the disk, or returns "" if there is none.
func (u *users) of(ctx context.Context, info ublk.DeviceInfo, major, minor uint32) (string, error) {
	if by, err := heldInKernel("/sys", u.proc, fmt.Sprintf("ublkb%d", info.ID)); by != "" || err != nil {
		return by, err
	}
	l := u.join()
	select {
	case <-l.done:
		return l.uses[unix.Mkdev(major, minor)], l.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// heldInKernel describes what holds a disk and is in no mount table by the disk's number:
// another disk on top of it, Btrfs, whose mounts have numbers of their own, and swap.
func heldInKernel(sys, proc, disk string) (string, error) {
	holders, err := os.ReadDir(filepath.Join(sys, "class/block", disk, "holders"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if len(holders) > 0 {
		return "held by " + holders[0].Name(), nil
	}
	mounted, err := filepath.Glob(filepath.Join(sys, "fs/btrfs/*/devices", disk))
	if err != nil {
		return "", err
	}
	if len(mounted) > 0 {
		return "mounted as Btrfs " + filepath.Base(filepath.Dir(filepath.Dir(mounted[0]))), nil
	}
	loops, err := filepath.Glob(filepath.Join(sys, "block/loop*/loop/backing_file"))
	if err != nil {
		return "", err
	}
	for _, loop := range loops {
		// One that goes away meanwhile holds nothing.
		if on, err := os.ReadFile(loop); err == nil && filepath.Base(strings.TrimSpace(string(on))) == disk {
			return "held by " + filepath.Base(filepath.Dir(filepath.Dir(loop))), nil
		}
	}
	swaps, err := os.ReadFile(filepath.Join(proc, "swaps"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for line := range strings.Lines(string(swaps)) {
		if on, _, _ := strings.Cut(line, " "); filepath.Base(on) == disk {
			return "used as swap", nil
		}
	}
	return "", nil
}

// join returns a look that begins after the call.
func (u *users) join() *look {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.next == nil {
		u.next = &look{done: make(chan struct{})}
	}
	l := u.next
	if !u.busy {
		u.busy = true
		go u.run()
	}
	return l
}

// run takes looks until nobody waits for one. It ends by itself.
func (u *users) run() {
	for {
		u.mu.Lock()
		l := u.next
		u.next = nil
		u.busy = l != nil
		u.mu.Unlock()
		if l == nil {
			return
		}
		l.uses, l.err = scan(u.proc)
		close(l.done)
	}
}

func scan(proc string) (map[uint64]string, error) {
	dirs, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("look for users of disks: %w", err)
	}
	uses := make(map[uint64]string)
	namespaces := make(map[string]bool)
	for _, d := range dirs {
		if _, err := strconv.Atoi(d.Name()); err != nil {
			continue
		}
		dir := filepath.Join(proc, d.Name())
		if ns, err := os.Readlink(filepath.Join(dir, "ns/mnt")); err == nil && !namespaces[ns] {
			switch err := scanMounts(filepath.Join(dir, "mountinfo"), uses); {
			case err == nil:
				namespaces[ns] = true
			case !ended(err):
				return nil, fmt.Errorf("look for users of disks: %w", err)
			}
		}
		scanDescriptors(dir, uses)
	}
	return uses, nil
}

// ended says whether a process could not be asked because it has ended, and so uses
// nothing. (Another one in its mount namespace may do.)
func ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}

// scanMounts notes the device of every mount: field 3 of mountinfo.
func scanMounts(path string, uses map[uint64]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		major, minor, ok := strings.Cut(fields[2], ":")
		ma, err1 := strconv.ParseUint(major, 10, 32)
		mi, err2 := strconv.ParseUint(minor, 10, 32)
		if ok && err1 == nil && err2 == nil {
			uses[unix.Mkdev(uint32(ma), uint32(mi))] = "mounted at " + fields[4]
		}
	}
	return nil
}

// scanDescriptors notes the block devices that a process has open.
func scanDescriptors(dir string, uses map[uint64]string) {
	list, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return
	}
	for _, fd := range list {
		var st unix.Statx_t
		// Not to be synchronized: a file on a dead network must not hold us up.
		err := unix.Statx(unix.AT_FDCWD, filepath.Join(dir, "fd", fd.Name()), unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
			comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
			uses[unix.Mkdev(st.Rdev_major, st.Rdev_minor)] = fmt.Sprintf("open in process %s, %s", filepath.Base(dir), strings.TrimSpace(string(comm)))
		}
	}
}
