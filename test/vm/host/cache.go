package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Key digests the parts of a cache entry's content (versions, configuration, file hashes) to a short name. The parts'
// borders count: ("a", "b") and ("ab", "") differ.
func Key(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// FileKey digests a file's bytes, for use as a part of Key.
func FileKey(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("digest %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// Has returns the directory of a finished entry, and whether there is one.
func (h *Host) Has(kind, key string) (string, bool) {
	dir := filepath.Join(h.Cache, kind, key)
	_, err := os.Stat(dir)
	return dir, err == nil
}

// Entry returns the directory <cache>/<kind>/<key>. If it is absent, fill makes its content in an empty directory beside it,
// which is then renamed: an entry is whole or it is not there. Of several processes that ask for the same entry, one fills and
// the others wait for it. The content must not be changed afterwards.
func (h *Host) Entry(ctx context.Context, kind, key string, fill func(ctx context.Context, dir string) error) (string, error) {
	dir, ok := h.Has(kind, key)
	if ok {
		return dir, nil
	}
	unlock, err := h.Lock(ctx, kind+"."+key)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, ok := h.Has(kind, key); ok {
		return dir, nil
	}
	// The lock is ours, so whatever lies here is of a process that died.
	tmp := dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return "", fmt.Errorf("clear %s: %w", tmp, err)
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return "", fmt.Errorf("create %s: %w", tmp, err)
	}
	if err := fill(ctx, tmp); err != nil {
		_ = os.RemoveAll(tmp)
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", fmt.Errorf("publish cache entry %s/%s: %w", kind, key, err)
	}
	return dir, nil
}

// Lock takes the cache's lock of that name, shared by all processes, and waits for it until ctx ends. It falls by itself when
// the process dies.
func (h *Host) Lock(ctx context.Context, name string) (unlock func(), err error) {
	dir := filepath.Join(h.Cache, "lock")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create %s: %w", dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock %s: %w", name, err)
	}
	told := false
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			// Closing would do; the explicit unlock also covers a descriptor that a child inherited.
			return func() { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN); f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if !told {
			h.Say("waiting for another process that makes %s", name)
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for lock %s: %w", name, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Note keeps a small value in the cache under a name, for answers that are costly to find again; it replaces the last one.
func (h *Host) Note(name, value string) error {
	dir := filepath.Join(h.Cache, "note")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	f, err := os.CreateTemp(dir, name+".tmp")
	if err != nil {
		return fmt.Errorf("write note %s: %w", name, err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write note %s: %w", name, err)
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return fmt.Errorf("write note %s: %w", name, err)
	}
	return nil
}

// Noted returns a note that is younger than maxAge (0: of any age).
func (h *Host) Noted(name string, maxAge time.Duration) (value string, ok bool) {
	path := filepath.Join(h.Cache, "note", name)
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err != nil || maxAge > 0 && time.Since(st.ModTime()) > maxAge {
		return "", false
	}
	b, err := os.ReadFile(path)
	return string(b), err == nil
}

// Unnote drops all notes whose name has that prefix.
func (h *Host) Unnote(prefix string) error {
	files, err := filepath.Glob(filepath.Join(h.Cache, "note", prefix+"*"))
	if err != nil {
		return fmt.Errorf("list notes %s: %w", prefix, err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("drop note: %w", err)
		}
	}
	return nil
}
