// Package fsid gives a copy of a file system its own identity: a new UUID, written
// into the few sectors that hold it. No program is run, no log is rewritten, and
// the file system must not be mounted.
//
// It knows the file systems that this driver's mkfs makes, fresh from mkfs, and
// refuses everything that it does not know to the last bit: a feature added later
// may keep the UUID in a place of its own.
package fsid

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/google/uuid"
)

// File is a file system image.
type File interface {
	io.ReaderAt
	io.WriterAt
}

// UnknownError says what is not as this package knows it, and that nothing was
// written. It matches errors.ErrUnsupported.
type UnknownError struct {
	FSType, What string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("%s image: %s: its UUID can't be changed here", e.FSType, e.What)
}

func (e *UnknownError) Is(target error) bool { return target == errors.ErrUnsupported }

// edit is bytes to be written, the same length as what is there.
type edit struct {
	offset int64
	bytes  []byte
}

// Set gives the file system in a file of sizeBytes the UUID id. What is wrong with
// the image is found before the first byte is written; after an error of the
// writing, the image is of no use. The caller syncs the file.
func Set(f File, fsType string, sizeBytes int64, id uuid.UUID) error {
	edits, err := edits(f, fsType, sizeBytes, id)
	if err != nil {
		return err
	}
	for _, e := range edits {
		if _, err := f.WriteAt(e.bytes, e.offset); err != nil {
			return fmt.Errorf("set UUID of %s image: %w", fsType, err)
		}
	}
	return nil
}

// Check says whether Set would work, and writes nothing.
func Check(f io.ReaderAt, fsType string, sizeBytes int64) error {
	_, err := edits(f, fsType, sizeBytes, uuid.New())
	return err
}

func edits(f io.ReaderAt, fsType string, sizeBytes int64, id uuid.UUID) ([]edit, error) {
	switch fsType {
	case "ext4":
		return ext4Edits(f, sizeBytes, id)
	case "xfs":
		return xfsEdits(f, sizeBytes, id)
	}
	return nil, &UnknownError{fsType, "no file system of this driver"}
}

// image reads pieces of an image of a known size.
type image struct {
	r      io.ReaderAt
	fsType string
	size   int64
}

func (i image) read(offset, n int64) ([]byte, error) {
	if offset < 0 || n > i.size || offset > i.size-n {
		return nil, i.unknown("a structure at %d lies outside of its %d bytes", offset, i.size)
	}
	b := make([]byte, n)
	if _, err := i.r.ReadAt(b, offset); err != nil {
		return nil, fmt.Errorf("read %s image: %w", i.fsType, err)
	}
	return b, nil
}

func (i image) unknown(format string, args ...any) error {
	return &UnknownError{i.fsType, fmt.Sprintf(format, args...)}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
