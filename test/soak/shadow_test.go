//go:build soak && linux

package soak

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

const blockBytes = 4096

// A shadow knows what each block of a volume must hold: the number of the write,
// from which with the volume's id and the block's place its bytes follow.
type shadow struct {
	id     string
	blocks []uint64 // 0: never written, reads as zeros
	last   uint64
	buf    []byte
}

func newShadow(id string, blocks int) *shadow {
	raw := make([]byte, 2*blockBytes)
	off := blockBytes - int(uintptr(unsafe.Pointer(&raw[0]))%blockBytes)
	return &shadow{id: id, blocks: make([]uint64, blocks), buf: raw[off:][:blockBytes]}
}

// fill makes the bytes of one write of one block.
func (s *shadow) fill(b []byte, block int, write uint64) {
	clear(b)
	if write == 0 {
		return
	}
	copy(b, s.id)
	for at := 128; at < len(b); at += 16 {
		binary.LittleEndian.PutUint64(b[at:], write*0x9e3779b97f4a7c15+uint64(at))
		binary.LittleEndian.PutUint64(b[at+8:], uint64(block))
	}
}

// write changes a few blocks, and returns when they are on the disk.
func (s *shadow) write(f *os.File, r *rand.Rand) error {
	for range 1 + r.IntN(32) {
		block := r.IntN(len(s.blocks))
		s.last++
		s.fill(s.buf, block, s.last)
		if _, err := f.WriteAt(s.buf, int64(block)*blockBytes); err != nil {
			return fmt.Errorf("write block %d: %w", block, err)
		}
		s.blocks[block] = s.last
	}
	return f.Sync()
}

// check reads every block that was written and some of those that were not.
func (s *shadow) check(f *os.File, r *rand.Rand) error {
	want := make([]byte, blockBytes)
	for block, write := range s.blocks {
		if write == 0 && r.IntN(16) != 0 {
			continue
		}
		if _, err := f.ReadAt(s.buf, int64(block)*blockBytes); err != nil {
			return fmt.Errorf("read block %d: %w", block, err)
		}
		s.fill(want, block, write)
		if !bytes.Equal(s.buf, want) {
			return fmt.Errorf("WRONG BYTES in block %d: want those of write %d, got %x", block, write, s.buf[:32])
		}
	}
	return nil
}

// open opens what the pod would: the device, or a file of that size in the file
// system.
func (s *shadow) open(v *volume, size int64) (*os.File, error) {
	if v.fsType == "" {
		return os.OpenFile(v.target(), os.O_RDWR|unix.O_DIRECT, 0)
	}
	f, err := os.OpenFile(filepath.Join(v.target(), "data"), os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
