package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// errInvalid marks a request that can never succeed.
var errInvalid = errors.New("invalid request")

// A backing is what is known of a volume's file.
type backing struct {
	path          string
	device, inode uint64 // st_dev and st_ino: what the worker must find, too
	info          ublk.FileInfo
}

// backings remembers what the pools' file systems can do, which takes a file and
// some changes of it to find out.
type backings struct {
	mu    sync.Mutex
	known map[fileSystem]ublk.FileInfo
}

// fileSystem tells file systems apart, also after another was mounted in a place.
type fileSystem struct {
	device uint64
	kind   int64
	id     unix.Fsid
}

// probe is ublk.ProbeFile, with what is known of another file of the file system.
func (b *backings) probe(f *os.File, device uint64) (ublk.FileInfo, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return ublk.FileInfo{}, &os.PathError{Op: "statfs", Path: f.Name(), Err: err}
	}
	key := fileSystem{device, int64(st.Type), st.Fsid}
	b.mu.Lock()
	info, ok := b.known[key]
	b.mu.Unlock()
	if ok {
		return info.Of(f)
	}
	info, err := ublk.ProbeFile(f)
	if err != nil {
		return info, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known == nil {
		b.known = make(map[fileSystem]ublk.FileInfo)
	}
	b.known[key] = info
	return info, nil
}

// openInPools opens a regular file below the pools directory. The path must lead there
// without passing any symbolic link, so that nobody who can write to a pool has this root
// process open something else.
func openInPools(poolsDir, path string, flags int) (_ *os.File, st unix.Stat_t, err error) {
	rel, err := filepath.Rel(poolsDir, path)
	if err != nil || !filepath.IsAbs(path) || filepath.Clean(path) != path || rel == "." || strings.HasPrefix(rel, "..") {
		return nil, st, fmt.Errorf("path %q is not inside %s: %w", path, poolsDir, errInvalid)
	}
	dir, err := unix.Open(poolsDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, st, &os.PathError{Op: "open", Path: poolsDir, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, rel, &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NONBLOCK),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, st, openError(path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	switch statErr := unix.Fstat(fd, &st); {
	case statErr != nil:
		err = &os.PathError{Op: "stat", Path: path, Err: statErr}
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = fmt.Errorf("path %q is not a regular file: %w", path, errInvalid)
	default:
		return f, st, nil
	}
	f.Close()
	return nil, st, err
}

// open looks at a volume's file, and closes it again: the worker opens it anew and
// compares device and inode.
func (bs *backings) open(poolsDir, path string, readOnly bool) (backing, error) {
	// Read-write although it is only looked at: what fallocate can do here is
	// asked of the descriptor, and a file that can't be written shows now.
	mode := unix.O_RDWR
	if readOnly {
		mode = unix.O_RDONLY
	}
	f, st, err := openInPools(poolsDir, path, mode|unix.O_DIRECT)
	if err != nil {
		return backing{}, err
	}
	defer f.Close()
	info, err := bs.probe(f, st.Dev)
	if err != nil {
		return backing{}, err
	}
	b := backing{path: path, device: st.Dev, inode: st.Ino, info: info}
	block := int64(info.Params().LogicalBlockBytes)
	if info.SizeBytes <= 0 || info.SizeBytes%block != 0 {
		return backing{}, fmt.Errorf("size %d of %s is not a positive multiple of its block size %d: %w", info.SizeBytes, path, block, errInvalid)
	}
	return b, nil
}

func openError(path string, err error) error {
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return fmt.Errorf("path %q leads through a link: %w", path, errInvalid)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("path %q: its file system has no direct I/O: %w", path, errInvalid)
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("path %q is not a regular file: %w", path, errInvalid)
	}
	return &os.PathError{Op: "open", Path: path, Err: err}
}
