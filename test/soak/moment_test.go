//go:build soak && linux

package soak

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
)

// A moment is what a copy may hold that is cut while its volume is written: all that was
// acknowledged when the cut began, and of the writes from then on the first few, none
// without those before it.
type moment struct {
	blocks []uint64
	later  []placed
}

// beginCut opens a moment, endCut closes it: the cut is between them.
func (s *shadow) beginCut() *moment {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = &moment{blocks: slices.Clone(s.blocks)}
	if s.inFlight != nil {
		s.cut.later = append(s.cut.later, *s.inFlight)
	}
	return s.cut
}

func (s *shadow) endCut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = nil
}

// settle finds out which state a copy holds, and returns the shadow of it, with which
// it is written on. id is that of the source, by which its blocks are marked.
func (m *moment) settle(f *os.File, id string, r *rand.Rand) (*shadow, error) {
	s := newShadow(id, len(m.blocks))
	s.blocks = slices.Clone(m.blocks)
	s.last = slices.Max(m.blocks)
	want, n := make([]byte, blockBytes), 0
	for i, p := range m.later {
		if _, err := f.ReadAt(s.buf, int64(p.block)*blockBytes); err != nil {
			return nil, fmt.Errorf("read block %d of a copy: %w", p.block, err)
		}
		if s.fill(want, p); bytes.Equal(s.buf, want) {
			n = i + 1
		}
		s.last = max(s.last, p.write)
	}
	for _, p := range m.later[:n] {
		s.blocks[p.block] = p.write
	}
	if err := s.check(f, r); err != nil {
		return nil, fmt.Errorf("of %d writes during the cut the copy has the last of the first %d, but: %w", len(m.later), n, err)
	}
	// No write of the source's has the number of one of the copy's.
	s.last += 1 << 32
	return s, nil
}
