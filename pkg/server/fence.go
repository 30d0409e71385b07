package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A fence tells when the file I/O of one worker process is over. It is a named
// pipe whose only writers are the rings of that worker: the kernel lets go of a
// ring, and of the files registered with it, when its last request is done, and
// a request to a file is done when the file's disk has answered. So EOF means
// that nothing this worker ever wrote can reach a file any more. Being dead is
// not enough: exit does not wait for I/O that is with the disk.
//
// It has a name so that the next server finds it: a server that is killed takes
// its workers with it, and their last writes may still be under way then. The name
// says, too, whose files the writes are to.
type fence struct {
	worker string
	path   string
	read   *os.File
	// fileSystem is the one that the worker serves, as st_dev; 0 if it is not known.
	fileSystem uint64
}

const fenceSuffix = ".fifo"

// A worker's name ends with the file system that it serves, once it serves one.
const fileSystemMark = "@"

func servingName(worker string, fileSystem uint64) string {
	return worker + fileSystemMark + strconv.FormatUint(fileSystem, 10)
}

// servedBy is the file system in a worker's name; 0 if there is none, as in those of
// standbys, and of servers that did not tell file systems apart.
func servedBy(worker string) uint64 {
	_, number, _ := strings.Cut(worker, fileSystemMark)
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// makeFence makes the fence of a worker that is about to be started. The read
// end is open from here on, or the worker could not open the write end.
func makeFence(dir, worker string) (*fence, error) {
	path := filepath.Join(dir, worker+fenceSuffix)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make fence of worker %s: %w", worker, err)
	}
	f, err := openFence(path)
	if err != nil {
		os.Remove(path)
	}
	return f, err
}

func openFence(path string) (*fence, error) {
	worker := strings.TrimSuffix(filepath.Base(path), fenceSuffix)
	// Non-blocking: an open for reading would otherwise wait for a writer.
	r, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open fence of worker %s: %w", worker, err)
	}
	st, err := r.Stat()
	if err == nil && st.Mode()&fs.ModeNamedPipe == 0 {
		err = errors.New("it is not a named pipe")
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("open fence of worker %s: %w", worker, err)
	}
	return &fence{worker: worker, path: path, read: r, fileSystem: servedBy(worker)}, nil
}

// assign notes, for this server and the next, that the worker is about to serve a
// file system.
func (f *fence) assign(fileSystem uint64) error {
	worker := servingName(f.worker, fileSystem)
	path := filepath.Join(filepath.Dir(f.path), worker+fenceSuffix)
	if err := os.Rename(f.path, path); err != nil {
		return fmt.Errorf("rename fence of worker %s: %w", f.worker, err)
	}
	f.worker, f.path, f.fileSystem = worker, path, fileSystem
	return nil
}

// openFences opens the fences that former servers left behind.
func openFences(dir string) ([]*fence, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"+fenceSuffix))
	if err != nil {
		return nil, err
	}
	var list []*fence
	for _, name := range names {
		f, err := openFence(name)
		if err != nil {
			for _, f := range list {
				f.close()
			}
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}

// wait returns nil when the worker's file I/O is over. It must not be called
// before the worker has opened its end: a pipe without a writer is at its end.
// It returns ctx's error if that is done before; the I/O is not over then.
func (f *fence) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { f.read.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var b [64]byte
	for {
		_, err := f.read.Read(b[:])
		switch {
		case err == nil: // nobody writes; but data would be no end
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
			return fmt.Errorf("wait for the file I/O of worker %s: %w", f.worker, context.Cause(ctx))
		default:
			return fmt.Errorf("wait for the file I/O of worker %s: %w", f.worker, err)
		}
	}
}

// remove forgets a fence whose wait has returned nil.
func (f *fence) remove() error {
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove fence of worker %s: %w", f.worker, err)
	}
	return f.close()
}

// close keeps the name: the next server waits again.
func (f *fence) close() error { return f.read.Close() }
