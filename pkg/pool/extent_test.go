package pool

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestExtentsOfAMap(t *testing.T) {
	const delalloc, encoded = 0x4, 0x8
	placed := func(start, end int64, place uint64) extent { return extent{Range{start, end}, place, true} }
	for name, c := range map[string]struct {
		from int64
		read []fiemapExtent
		want []extent
	}{
		"nothing":                           {},
		"data":                              {0, []fiemapExtent{{logical: 10, physical: 500, length: 10}}, []extent{placed(10, 20, 500)}},
		"shared data":                       {0, []fiemapExtent{{logical: 10, physical: 500, length: 10, flags: fiemapExtentShared | fiemapExtentLast}}, []extent{placed(10, 20, 500)}},
		"space without data":                {0, []fiemapExtent{{logical: 10, physical: 500, length: 10, flags: fiemapExtentUnwritten}}, nil},
		"data on its way to such space":     {0, []fiemapExtent{{logical: 10, length: 10, flags: fiemapExtentUnwritten | delalloc}}, []extent{{Range: Range{10, 20}}}},
		"compressed data":                   {0, []fiemapExtent{{logical: 10, physical: 500, length: 10, flags: encoded}}, []extent{{Range: Range{10, 20}}}},
		"an extent that begins before":      {15, []fiemapExtent{{logical: 10, physical: 500, length: 10}}, []extent{placed(15, 20, 505)}},
		"an extent that ends before":        {20, []fiemapExtent{{logical: 10, physical: 500, length: 10}}, nil},
		"an extent beyond the file's end":   {0, []fiemapExtent{{logical: 90, physical: 500, length: 30}}, []extent{placed(90, 100, 500)}},
		"space that is kept beyond its end": {0, []fiemapExtent{{logical: 100, physical: 500, length: 30}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := toExtents(c.read, c.from, 100); !slices.Equal(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestDiffering(t *testing.T) {
	at := func(start, end int64, place uint64) extent { return extent{Range{start, end}, place, true} }
	nowhere := func(start, end int64) extent { return extent{Range: Range{start, end}} }
	for name, c := range map[string]struct {
		base, target []extent
		want         []Range
	}{
		"two holes":                            {nil, nil, nil},
		"data that is shared":                  {[]extent{at(10, 20, 70)}, []extent{at(10, 20, 70)}, nil},
		"shared, and cut otherwise":            {[]extent{at(10, 15, 70), at(15, 20, 75)}, []extent{at(10, 20, 70)}, nil},
		"written anew in the middle":           {[]extent{at(10, 20, 70)}, []extent{at(10, 13, 70), at(13, 15, 900), at(15, 20, 75)}, []Range{{13, 15}}},
		"written where nothing was":            {nil, []extent{at(10, 20, 70)}, []Range{{10, 20}}},
		"discarded":                            {[]extent{at(10, 20, 70)}, nil, []Range{{10, 20}}},
		"discarded in the middle":              {[]extent{at(10, 20, 70)}, []extent{at(10, 12, 70), at(18, 20, 78)}, []Range{{12, 18}}},
		"the same place, for another byte":     {[]extent{at(10, 20, 70)}, []extent{at(11, 20, 70)}, []Range{{10, 11}, {11, 20}}},
		"data that has no place":               {[]extent{nowhere(10, 20)}, []extent{nowhere(10, 20)}, []Range{{10, 20}}},
		"data of which one has no place":       {[]extent{at(10, 20, 0)}, []extent{nowhere(10, 20)}, []Range{{10, 20}}},
		"beyond what is looked at, and before": {nil, []extent{at(0, 6, 70), at(95, 120, 200)}, []Range{{5, 6}, {95, 100}}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []Range
			differing(c.base, c.target, 5, 100, func(r Range) { got = append(got, r) })
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Files of a few blocks at few places, block by block: every way of cutting them into
// extents says the same.
func TestDifferingByModel(t *testing.T) {
	const blocks, seed = 40, 11
	r := rand.New(rand.NewPCG(seed, seed))
	// A file is the place of each block; 0 is a hole.
	file := func() []uint64 {
		f := make([]uint64, blocks)
		for i := range f {
			if r.IntN(3) > 0 {
				f[i] = uint64(1000 + i + blocks*r.IntN(2))
			}
		}
		return f
	}
	extents := func(f []uint64) (list []extent) {
		for i, place := range f {
			if place == 0 {
				continue
			}
			last := len(list) - 1
			if last >= 0 && list[last].End == int64(i) && list[last].place+uint64(list[last].End-list[last].Start) == place && r.IntN(4) > 0 {
				list[last].End++
				continue
			}
			list = append(list, extent{Range{int64(i), int64(i + 1)}, place, true})
		}
		return list
	}
	for range 2000 {
		base, target := file(), file()
		from, until := int64(r.IntN(blocks)), int64(1+r.IntN(blocks))
		listed := make([]bool, blocks)
		end := from
		differing(extents(base), extents(target), from, until, func(g Range) {
			if g.Start < end || g.End <= g.Start || g.End > until {
				t.Errorf("range %v after %d, until %d", g, end, until)
			}
			end = g.End
			for i := g.Start; i < g.End; i++ {
				listed[i] = true
			}
		})
		for i := range int64(blocks) {
			if want := i >= from && i < until && base[i] != target[i]; listed[i] != want {
				t.Fatalf("seed %d: block %d listed %v, want %v; %v and %v from %d until %d", seed, i, listed[i], want, base, target, from, until)
			}
		}
	}
}

func TestFindBehindTheLast(t *testing.T) {
	if _, in, end := find(nil, 7); in || end != math.MaxInt64 {
		t.Errorf("in %v until %d", in, end)
	}
}
