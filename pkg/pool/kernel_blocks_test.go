//go:build ublk

package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

const blockBytes = 4096

// scribbler changes a volume at random and keeps book of the blocks that it touched.
type scribbler struct {
	*rand.Rand
	t       *testing.T
	p       *Pool
	f       *os.File
	size    int64
	touched map[int64]bool
}

func newScribbler(t *testing.T, p *Pool, volume string, size int64, seed uint64) *scribbler {
	t.Helper()
	if err := p.Create(volume, size); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(p.VolumePath(volume), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &scribbler{Rand: rand.New(rand.NewPCG(seed, 0)), t: t, p: p, f: f, size: size, touched: make(map[int64]bool)}
}

// somewhere returns a range of up to 64 blocks, not aligned to any.
func (s *scribbler) somewhere() (at, n int64) {
	at = s.Int64N(s.size)
	n = 1 + s.Int64N(min(64*blockBytes, s.size-at))
	for b := at / blockBytes; b <= (at+n-1)/blockBytes; b++ {
		s.touched[b] = true
	}
	return at, n
}

func (s *scribbler) step() {
	s.t.Helper()
	at, n := s.somewhere()
	var err error
	switch s.IntN(8) {
	case 0, 1: // discard
		err = unix.Fallocate(int(s.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n)
	case 2: // write zeroes
		err = unix.Fallocate(int(s.f.Fd()), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, at, n)
	case 3: // space that is not written
		err = unix.Fallocate(int(s.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, at, n)
	default:
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(s.Uint32())
		}
		_, err = s.f.WriteAt(b, at)
	}
	if err == nil && s.IntN(4) == 0 {
		err = s.f.Sync()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scribbler) grow(volume string, by int64) {
	s.t.Helper()
	if err := s.p.Grow(volume, s.size+by); err != nil {
		s.t.Fatal(err)
	}
	s.size += by
}

// forget returns the blocks that were touched since the last call.
func (s *scribbler) forget() map[int64]bool {
	t := s.touched
	s.touched = make(map[int64]bool)
	return t
}

func snapshotBytes(t *testing.T, p *Pool, id string) []byte {
	t.Helper()
	b, err := os.ReadFile(p.snapshots.Name() + "/" + id)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func ranges(t *testing.T, b *Blocks, from int64) (list []Range) {
	t.Helper()
	for r, err := range b.From(t.Context(), from) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

// checkRanges compares the ranges with the bytes: all that differ are listed, and no
// block is that nobody touched.
func checkRanges(t *testing.T, list []Range, base, target []byte, touched map[int64]bool) {
	t.Helper()
	base = append(slices.Clone(base), make([]byte, max(0, len(target)-len(base)))...)
	listed := make([]bool, len(target)/blockBytes)
	end := int64(-1)
	for _, r := range list {
		if r.Start <= end || r.End <= r.Start || r.End > int64(len(target)) || r.Start%blockBytes != 0 || r.End%blockBytes != 0 {
			t.Errorf("range %v behind %d, of %d bytes", r, end, len(target))
		}
		end = r.End
		for b := r.Start / blockBytes; b < r.End/blockBytes; b++ {
			listed[b] = true
			if !touched[b] {
				t.Errorf("block %d is listed, and nobody touched it", b)
			}
		}
	}
	differ := 0
	for b := range listed {
		if bytes.Equal(base[b*blockBytes:(b+1)*blockBytes], target[b*blockBytes:(b+1)*blockBytes]) {
			continue
		}
		differ++
		if !listed[b] {
			t.Fatalf("block %d differs and is not listed", b)
		}
	}
	t.Logf("%d of %d blocks differ, %d ranges", differ, len(listed), len(list))
}

// checkResume continues at many offsets: what comes is the rest.
func checkResume(t *testing.T, b *Blocks, r *rand.Rand) {
	t.Helper()
	all := ranges(t, b, 0)
	offsets := []int64{1, b.SizeBytes - 1, b.SizeBytes, b.SizeBytes + 1}
	for range 20 {
		offsets = append(offsets, r.Int64N(b.SizeBytes))
	}
	for range min(20, len(all)) {
		x := all[r.IntN(len(all))]
		offsets = append(offsets, x.Start, x.Start+1, x.End-1, x.End)
	}
	for _, from := range offsets {
		var want []Range
		for _, x := range all {
			if x.Start = max(x.Start, from); x.Start < x.End {
				want = append(want, x)
			}
		}
		if got := ranges(t, b, from); !slices.Equal(got, want) {
			t.Errorf("from %d: %d ranges, want %d", from, len(got), len(want))
		}
	}
}

func onEachReflink(t *testing.T, test func(t *testing.T, p *Pool)) {
	for _, fsType := range []string{"xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			blankDisk(t)
			p := open1(t, Options{Name: "disk", Kind: KindDevice, StateDir: t.TempDir(), Device: disk, FSType: fsType})
			t.Cleanup(func() { putDown(t, p) })
			test(t, p)
		})
	}
}

// A volume is written, discarded and grown at random, with a snapshot now and then; the
// ranges of every two of them hold every byte that differs and no block that was left
// alone, and can be continued anywhere.
func TestChangedBlocksEqualAByteCompare(t *testing.T) {
	onEachReflink(t, func(t *testing.T, p *Pool) {
		seeds := []uint64{1, 2, 3}
		if testing.Short() {
			seeds = seeds[:1]
		}
		for _, seed := range seeds {
			t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { compareSnapshots(t, p, seed) })
		}
	})
}

func compareSnapshots(t *testing.T, p *Pool, seed uint64) {
	const size = 24 * mib
	volume := fmt.Sprint("v", seed)
	s := newScribbler(t, p, volume, size, seed)
	name := func(i int) string { return fmt.Sprintf("%s-%d", volume, i) }
	var content [][]byte
	var touched []map[int64]bool // before each snapshot
	for i, steps := range []int{0, 400, 3, 0, 150, 40} {
		if i == 4 {
			s.grow(volume, 8*mib)
		}
		for range steps {
			s.step()
		}
		cut(t, p, name(i), volume)
		content = append(content, snapshotBytes(t, p, name(i)))
		touched = append(touched, s.forget())
	}
	for target := range content {
		since := make(map[int64]bool)
		for base := target; base >= -1; base-- {
			var b *Blocks
			var before []byte
			var err error
			if base >= 0 {
				before = content[base]
				b, err = p.ChangedBlocks(name(base), name(target))
			} else {
				b, err = p.AllocatedBlocks(name(target))
			}
			if err != nil {
				t.Fatal(err)
			}
			if b.SizeBytes != int64(len(content[target])) {
				t.Errorf("size %d, want %d", b.SizeBytes, len(content[target]))
			}
			list := ranges(t, b, 0)
			checkRanges(t, list, before, content[target], since)
			checkResume(t, b, s.Rand)
			if base == target && len(list) > 0 {
				t.Errorf("a snapshot differs from itself: %v", list)
			}
			b.Close()
			if base >= 0 {
				for b := range touched[base] {
					since[b] = true
				}
			}
		}
	}
	for i := range content {
		if err := p.DeleteSnapshot(name(i)); err != nil {
			t.Fatal(err)
		}
	}
	reclaimAll(t, p)
}

// A map of more extents than one read returns, of which every other one has changed.
func TestChangedBlocksOfManyExtents(t *testing.T) {
	onEachReflink(t, func(t *testing.T, p *Pool) {
		const n = 5 * fiemapBatch
		s := newScribbler(t, p, "v", 8*n*blockBytes, 1)
		put := func(block int64, b byte) {
			t.Helper()
			s.touched[block] = true
			if _, err := s.f.WriteAt(bytes.Repeat([]byte{b}, blockBytes), block*blockBytes); err != nil {
				t.Fatal(err)
			}
		}
		for i := range int64(n) {
			put(2*i, 'a')
		}
		cut(t, p, "before", "v")
		s.forget()
		for i := range int64(n) {
			put(8*i, 'b')
		}
		cut(t, p, "after", "v")
		b, err := p.ChangedBlocks("before", "after")
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		list := ranges(t, b, 0)
		if len(list) != n {
			t.Errorf("%d ranges, want %d", len(list), n)
		}
		checkRanges(t, list, snapshotBytes(t, p, "before"), snapshotBytes(t, p, "after"), s.touched)
	})
}

// What is deleted while it is read ends in an error and not in a list without what is
// gone already.
func TestChangedBlocksOfADeletedSnapshot(t *testing.T) {
	p := templatePool(t, nil)
	s := newScribbler(t, p, "v", 4*mib, 1)
	cut(t, p, "before", "v")
	for range 50 {
		s.step()
	}
	cut(t, p, "after", "v")
	for name, base := range map[string]string{"the earlier one": "before", "the later one": "after"} {
		cut(t, p, "now", "v")
		b, err := p.ChangedBlocks(base, "now")
		if err != nil {
			t.Fatal(err)
		}
		gone := "now"
		if base == "before" {
			gone = base
		}
		if err := p.DeleteSnapshot(gone); err != nil {
			t.Fatal(err)
		}
		reclaimAll(t, p)
		var got error
		for r, err := range b.From(t.Context(), 0) {
			if got = err; err == nil {
				t.Errorf("range %v", r)
			}
		}
		if !errors.Is(got, fs.ErrNotExist) {
			t.Errorf("%s deleted: %v", name, got)
		}
		b.Close()
		if err := p.DeleteSnapshot("now"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.ChangedBlocks("before", "after"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a snapshot that there is not: %v", err)
	}
	if _, err := p.AllocatedBlocks("../v"); err == nil {
		t.Error("a path is no id")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b, err := p.AllocatedBlocks("after")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, err := range b.From(ctx, 0) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
}

func TestNoChangedBlocksWithoutPlaces(t *testing.T) {
	p := openPool(t, stateOn(t, "ext4"), nil)
	if err := os.WriteFile(p.snapshots.Name()+"/s", []byte("put there by hand"), 0o600); err != nil {
		t.Fatal(err)
	}
	var none *NoExtentMapError
	if _, err := p.AllocatedBlocks("s"); !errors.As(err, &none) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("on ext4: %v", err)
	}
}
