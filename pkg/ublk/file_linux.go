package ublk

import (
	"errors"
	"fmt"
	"math/bits"
	"os"

	"golang.org/x/sys/unix"
)

// defaultAlign is safe for direct I/O where the file system does not say what
// it needs: Linux before 6.1, and some file systems.
const defaultAlign = 4096

// ProbeFile finds out what a device can offer whose bytes are in f: a regular
// file, open for reading and writing, with O_DIRECT or without. The file's
// content and size stay as they are.
func ProbeFile(f *os.File) (FileInfo, error) {
	info, err := probeFile(f)
	if err != nil {
		return FileInfo{}, fmt.Errorf("probe %s: %w", f.Name(), err)
	}
	return info, nil
}

func probeFile(f *os.File) (FileInfo, error) {
	fd := int(f.Fd())
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return FileInfo{}, err
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_DIOALIGN, &st); err != nil {
		return FileInfo{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return FileInfo{}, fmt.Errorf("not a regular file: %w", errors.ErrUnsupported)
	}
	i := FileInfo{SizeBytes: int64(st.Size), Direct: flags&unix.O_DIRECT != 0}
	if i.Direct {
		i.DirectOffsetBytes, i.DirectMemoryBytes = defaultAlign, defaultAlign
		if st.Mask&unix.STATX_DIOALIGN != 0 && st.Dio_offset_align != 0 {
			i.DirectOffsetBytes, i.DirectMemoryBytes = st.Dio_offset_align, st.Dio_mem_align
		}
		if bits.OnesCount32(i.DirectOffsetBytes) != 1 || int(i.DirectMemoryBytes) > os.Getpagesize() {
			return FileInfo{}, fmt.Errorf("direct I/O wants alignments of %d and %d: %w",
				i.DirectOffsetBytes, i.DirectMemoryBytes, errors.ErrUnsupported)
		}
	}
	return i, i.probeModes(fd)
}

// probeModes tries the modes of fallocate behind the end of the file, where
// they change nothing that can be read. A mode that is there may allocate a
// block; punching it out again comes last.
func (i *FileInfo) probeModes(fd int) error {
	const block = 1 << 16
	off := (i.SizeBytes + block - 1) / block * block
	for _, m := range []struct {
		mode uint32
		have *bool
	}{
		{unix.FALLOC_FL_ZERO_RANGE, &i.ZeroRange},
		{unix.FALLOC_FL_PUNCH_HOLE, &i.PunchHole},
	} {
		err := unix.Fallocate(fd, m.mode|unix.FALLOC_FL_KEEP_SIZE, off, block)
		for errors.Is(err, unix.EINTR) {
			err = unix.Fallocate(fd, m.mode|unix.FALLOC_FL_KEEP_SIZE, off, block)
		}
		switch {
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
