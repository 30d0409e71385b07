package ublk

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// defaultAlign is safe for direct I/O where the file system does not say what
// it needs: Linux before 6.1, and some file systems.
const defaultAlign = 4096

// ProbeFile finds out what a device can offer whose bytes are in f: a regular
// file, open for reading and writing, with O_DIRECT or without. The file's
// content and size stay as they are; its directory must be writable.
func ProbeFile(f *os.File) (FileInfo, error) {
	info, err := probeFile(f)
	if err != nil {
		return FileInfo{}, fmt.Errorf("probe %s: %w", f.Name(), err)
	}
	return info, nil
}

func probeFile(f *os.File) (FileInfo, error) {
	i, err := lookAt(f)
	if err != nil {
		return i, err
	}
	return i, i.probeBeside(f)
}

// Of is what ProbeFile would say of f, a file of the same file system as the one
// that i is of, and takes the answers that belong to the file system from i.
func (i FileInfo) Of(f *os.File) (FileInfo, error) {
	of, err := lookAt(f)
	if err != nil {
		return FileInfo{}, fmt.Errorf("probe %s: %w", f.Name(), err)
	}
	of.PunchHole, of.ZeroRange = i.PunchHole, i.ZeroRange
	of.DirectOffsetBytes, of.DirectMemoryBytes = i.DirectOffsetBytes, i.DirectMemoryBytes
	return of, nil
}

// lookAt finds out what belongs to the file and not to its file system.
func lookAt(f *os.File) (FileInfo, error) {
	fd := int(f.Fd())
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return FileInfo{}, err
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st); err != nil {
		return FileInfo{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return FileInfo{}, fmt.Errorf("not a regular file: %w", errors.ErrUnsupported)
	}
	return FileInfo{SizeBytes: int64(st.Size), Direct: flags&unix.O_DIRECT != 0}, nil
}

// probeAlign asks what alignment direct I/O needs. XFS wants whole blocks of its own
// for a file that shares extents, where it wanted sectors before, and writes less than
// a block through the page cache all the same. A device's block size must not change
// with that: what is on it was made for the one it had. So f is a file that shares
// nothing.
func (i *FileInfo) probeAlign(f *os.File) error {
	if !i.Direct {
		return nil
	}
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st); err != nil {
		return err
	}
	i.DirectOffsetBytes, i.DirectMemoryBytes = defaultAlign, defaultAlign
	if st.Mask&unix.STATX_DIOALIGN != 0 && st.Dio_offset_align != 0 {
		i.DirectOffsetBytes, i.DirectMemoryBytes = st.Dio_offset_align, st.Dio_mem_align
	}
	if bits.OnesCount32(i.DirectOffsetBytes) != 1 || int(i.DirectMemoryBytes) > os.Getpagesize() {
		return fmt.Errorf("direct I/O wants alignments of %d and %d: %w", i.DirectOffsetBytes, i.DirectMemoryBytes, errors.ErrUnsupported)
	}
	return nil
}

// probeBeside asks and tries on a nameless file beside f. On f itself the modes of
// fallocate would not be harmless: even behind its end some file systems keep
// the blocks that zeroing allocates.
func (i *FileInfo) probeBeside(f *os.File) error {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return err
	}
	beside, err := nameless(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer beside.Close()
	if err := i.probeAlign(beside); err != nil {
		return err
	}
	const block = 1 << 16
	if err := beside.Truncate(block); err != nil {
		return err
	}
	for _, m := range []struct {
		mode uint32
		have *bool
	}{
		{unix.FALLOC_FL_ZERO_RANGE, &i.ZeroRange},
		{unix.FALLOC_FL_PUNCH_HOLE, &i.PunchHole},
	} {
		switch err := fallocate(beside, m.mode|unix.FALLOC_FL_KEEP_SIZE, block); {
		case err == nil:
			*m.have = true
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
			// It is there, and a full disk is no reason to say otherwise: a
			// device must look the same after each recovery.
			*m.have = true
		default:
			return fmt.Errorf("fallocate mode %#x: %w", m.mode, err)
		}
	}
	return nil
}

// nameless makes a file that vanishes when it is closed.
func nameless(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return f, err
	}
	if f, err = os.CreateTemp(dir, ".ublk-probe-*"); err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

func fallocate(f *os.File, mode uint32, n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), mode, 0, n)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// File makes a target of an open file; the caller keeps it open until every
// device that uses the target is done.
func File(f *os.File, o FileOptions) (*FileTarget, error) {
	t := &FileTarget{f: f, fd: int(f.Fd()), align: 1}
	if o.Info != nil {
		t.info = *o.Info
	} else {
		var err error
		if t.info, err = ProbeFile(f); err != nil {
			return nil, err
		}
	}
	if t.info.Direct && t.info.DirectOffsetBytes > 1 {
		t.align = uint64(t.info.DirectOffsetBytes)
	}
	return t, nil
}
