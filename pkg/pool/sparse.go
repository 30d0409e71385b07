package pool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// allHoles says whether a file holds no data: not on disk and not on its way there.
func allHoles(f *os.File) (bool, error) {
	_, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for data in %s: %w", f.Name(), err)
	}
	return false, nil
}

// punchBytes is the least range of zeros that is punched, and what ranges are
// aligned to: a block of the pool's file system or more.
const punchBytes = 64 << 10

// punchZeros turns zeros that were written, such as those of a log, and space that
// was only allocated into holes.
func punchZeros(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	end := int64(0) // of the data seen so far
	for {
		data, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return punch(f, end, st.Size())
		}
		if err != nil {
			return err
		}
		start := data / punchBytes * punchBytes
		if err := punch(f, end, start); err != nil {
			return err
		}
		stop, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		end = min((stop+punchBytes-1)/punchBytes*punchBytes, st.Size())
		if err := punchZerosIn(f, start, end); err != nil {
			return err
		}
	}
}

// punchZerosIn looks at the bytes of a range; what is punched is one call for
// neighbours.
func punchZerosIn(f *os.File, start, end int64) error {
	var zero, b [punchBytes]byte
	from := start // of the zeros before at
	for at := start; at < end; at += punchBytes {
		n := min(punchBytes, end-at)
		if _, err := f.ReadAt(b[:n], at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if bytes.Equal(b[:n], zero[:n]) {
			continue
		}
		if err := punch(f, from, at); err != nil {
			return err
		}
		from = at + n
	}
	return punch(f, from, end)
}

func punch(f *os.File, start, end int64) error {
	if start >= end {
		return nil
	}
	// Only the file's own end is not aligned, and part of a block is not freed.
	end = (end + punchBytes - 1) / punchBytes * punchBytes
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, start, end-start)
}
