package pool

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPunchZeros(t *testing.T) {
	const block = punchBytes
	for name, c := range map[string]struct {
		size    int64
		write   map[int64][]byte // by offset
		reserve bool             // take all of the space first, unwritten
		atMost  int64            // bytes left allocated
	}{
		"nothing":                {size: 4 * block},
		"space without data":     {size: 16 * block, reserve: true},
		"only zeros":             {size: 16 * block, write: map[int64][]byte{0: make([]byte, 16*block)}},
		"zeros at an odd end":    {size: 3*block + 1234, write: map[int64][]byte{block: make([]byte, 2*block+1234)}},
		"data between zeros":     {size: 16 * block, write: map[int64][]byte{0: make([]byte, 12*block), 5*block + 100: []byte("data")}, atMost: block},
		"data at both ends":      {size: 16*block + 10, write: map[int64][]byte{0: []byte("data"), 16 * block: []byte("data")}, atMost: 2 * block},
		"data all over":          {size: 4 * block, write: map[int64][]byte{0: bytes.Repeat([]byte("data"), block)}, atMost: 4 * block},
		"data in reserved space": {size: 16 * block, reserve: true, write: map[int64][]byte{9*block - 2: []byte("data")}, atMost: 2 * block},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.Truncate(c.size); err != nil {
				t.Fatal(err)
			}
			if c.reserve {
				if err := unix.Fallocate(int(f.Fd()), 0, 0, c.size); err != nil {
					t.Fatal(err)
				}
			}
			want := make([]byte, c.size)
			for _, offset := range slices.Sorted(maps.Keys(c.write)) {
				copy(want[offset:], c.write[offset])
				if _, err := f.WriteAt(c.write[offset], offset); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(f.Sync(), punchZeros(f), f.Sync()); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the content changed (%v)", err)
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil || allocated(st) > c.atMost {
				t.Errorf("%d bytes allocated, want at most %d (%v)", allocated(st), c.atMost, err)
			}
			if blank, err := allHoles(f); err != nil || blank != (c.atMost == 0) {
				t.Errorf("all holes: %v, %v", blank, err)
			}
		})
	}
}
