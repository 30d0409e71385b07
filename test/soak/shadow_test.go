//go:build soak && linux

package soak

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"unsafe"
)

const blockBytes = 4096

// A shadow knows what each block of a volume must hold: the number of the write,
// from which with the volume's id and the block's place its bytes follow. One
// goroutine writes and checks; another may cut meanwhile.
type shadow struct {
	id  string
	buf []byte

	mu       sync.Mutex
	blocks   []uint64         // 0: never written, reads as zeros
	doubt    map[int][]uint64 // writes that failed, and may be there all the same
	last     uint64
	inFlight *placed
	cut      *moment // under way
}

// A placed write goes into a block.
type placed struct {
	block int
	write uint64
}

func newShadow(id string, blocks int) *shadow {
	return &shadow{id: id, blocks: make([]uint64, blocks), doubt: make(map[int][]uint64), buf: alignedBlock()}
}

// alignedBlock is memory for direct I/O of a block.
func alignedBlock() []byte {
	raw := make([]byte, 2*blockBytes)
	off := blockBytes - int(uintptr(unsafe.Pointer(&raw[0]))%blockBytes)
	return raw[off:][:blockBytes]
}

// fill makes the bytes of one write of one block.
func (s *shadow) fill(b []byte, p placed) {
	clear(b)
	if p.write == 0 {
		return
	}
	copy(b, s.id)
	for at := 128; at < len(b); at += 16 {
		binary.LittleEndian.PutUint64(b[at:], p.write*0x9e3779b97f4a7c15+uint64(at))
		binary.LittleEndian.PutUint64(b[at+8:], uint64(p.block))
	}
}

// write changes a few blocks, and returns when they are on the disk.
func (s *shadow) write(f *os.File, r *rand.Rand) error {
	for range 1 + r.IntN(32) {
		p := s.begin(r.IntN(len(s.blocks)))
		s.fill(s.buf, p)
		_, err := f.WriteAt(s.buf, int64(p.block)*blockBytes)
		s.end(p, err == nil)
		if err != nil {
			return fmt.Errorf("write block %d: %w", p.block, err)
		}
	}
	return f.Sync()
}

func (s *shadow) begin(block int) placed {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	p := placed{block, s.last}
	s.inFlight = &p
	if s.cut != nil {
		s.cut.later = append(s.cut.later, p)
	}
	return p
}

func (s *shadow) end(p placed, good bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight = nil
	if good {
		s.blocks[p.block] = p.write
		delete(s.doubt, p.block)
	} else {
		s.doubt[p.block] = append(s.doubt[p.block], p.write)
	}
}

// check reads every block that was written and some of those that were not.
func (s *shadow) check(f *os.File, r *rand.Rand) error {
	want := make([]byte, blockBytes)
	for block, write := range s.blocks {
		if write == 0 && len(s.doubt[block]) == 0 && r.IntN(16) != 0 {
			continue
		}
		if _, err := f.ReadAt(s.buf, int64(block)*blockBytes); err != nil {
			return fmt.Errorf("read block %d: %w", block, err)
		}
		is := slices.IndexFunc(append([]uint64{write}, s.doubt[block]...), func(w uint64) bool {
			s.fill(want, placed{block, w})
			return bytes.Equal(s.buf, want)
		})
		if is < 0 {
			return fmt.Errorf("WRONG BYTES in block %d: want those of write %d or of %v, got %x", block, write, s.doubt[block], s.buf[:144])
		}
		if is > 0 {
			s.end(placed{block, s.doubt[block][is-1]}, true) // and so it stays
		}
	}
	return nil
}
