package capacity

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const mi = int64(1) << 20

// one is a ledger with node-a, node-b and node-c, whose pools "p" hold 100, 200
// and 300 MiB.
func three() *Ledger {
	l := New()
	for i, n := range []string{"node-a", "node-b", "node-c"} {
		l.SetNode(Node{Name: n, Pools: []Pool{{Name: "p", CapacityBytes: int64(i+1) * 100 * mi}}})
	}
	return l
}

func TestReserve(t *testing.T) {
	cases := map[string]struct {
		prepare func(*Ledger)
		request Request
		want    Place
		refusal string // part of the error
	}{
		"the emptiest node is taken when nothing is preferred": {
			request: Request{Name: "v", Pool: "p", Bytes: mi}, want: Place{"node-c", "p"}},
		"a preferred node is taken before an emptier one": {
			request: Request{Name: "v", Pool: "p", Bytes: mi, Preferred: []string{"node-a", "node-b"}}, want: Place{"node-a", "p"}},
		"a preferred node that is full is passed over": {
			request: Request{Name: "v", Pool: "p", Bytes: 150 * mi, Preferred: []string{"node-a", "node-b"}}, want: Place{"node-b", "p"}},
		"only the nodes asked for are taken": {
			request: Request{Name: "v", Pool: "p", Bytes: mi, Nodes: []string{"node-a"}}, want: Place{"node-a", "p"}},
		"a preferred node that is not allowed is not taken": {
			request: Request{Name: "v", Pool: "p", Bytes: mi, Nodes: []string{"node-a"}, Preferred: []string{"node-b"}}, want: Place{"node-a", "p"}},
		"a volume can take all there is": {
			request: Request{Name: "v", Pool: "p", Bytes: 300 * mi}, want: Place{"node-c", "p"}},
		"one byte more is refused on every node with what is free": {
			request: Request{Name: "v", Pool: "p", Bytes: 300*mi + 1}, refusal: "node-a: 104857600 bytes are free; node-b: 209715200 bytes are free; node-c: 314572800"},
		"volumes that exist take room": {
			prepare: func(l *Ledger) {
				l.SetVolume(Volume{Name: "old", UID: "1", Place: Place{"node-c", "p"}, Bytes: 250 * mi})
			},
			request: Request{Name: "v", Pool: "p", Bytes: mi}, want: Place{"node-b", "p"}},
		"what is being reclaimed is not free": {
			prepare: func(l *Ledger) {
				l.SetNode(Node{Name: "node-c", Pools: []Pool{{Name: "p", CapacityBytes: 300 * mi, ReclaimingBytes: 200 * mi}}})
			},
			request: Request{Name: "v", Pool: "p", Bytes: 101 * mi}, want: Place{"node-b", "p"}},
		"a node that takes no volume says why": {
			prepare: func(l *Ledger) { l.SetNode(Node{Name: "node-a", Refusal: "it is cordoned"}) },
			request: Request{Name: "v", Pool: "p", Bytes: mi, Nodes: []string{"node-a"}}, refusal: "node-a: it is cordoned"},
		"a pool that takes no volume says why": {
			prepare: func(l *Ledger) {
				l.SetNode(Node{Name: "node-a", Pools: []Pool{{Name: "p", CapacityBytes: mi, Refusal: "pool \"p\" is broken"}}})
			},
			request: Request{Name: "v", Pool: "p", Bytes: mi, Nodes: []string{"node-a"}}, refusal: `node-a: pool "p" is broken`},
		"a node without the pool is refused": {
			request: Request{Name: "v", Pool: "fast", Bytes: mi, Nodes: []string{"node-a"}}, refusal: `node-a: it has no pool "fast"`},
		"a node that nobody knows is refused": {
			request: Request{Name: "v", Pool: "p", Bytes: mi, Nodes: []string{"node-x"}}, refusal: "node-x: no csi-ublk node plugin has registered there"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := three()
			if c.prepare != nil {
				c.prepare(l)
			}
			got, err := l.Reserve(c.request)
			if c.refusal != "" {
				if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), c.refusal) {
					t.Errorf("got %v, %v, want an ENOSPC with %q", got, err, c.refusal)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

func TestRefusalsAreBounded(t *testing.T) {
	l := New()
	for i := range 1000 {
		l.SetNode(Node{Name: fmt.Sprintf("node-%03d", i), Refusal: "it is cordoned"})
	}
	_, err := l.Reserve(Request{Name: "v", Pool: "p", Bytes: 1})
	if err == nil || len(err.Error()) > 1000 || !strings.Contains(err.Error(), "and 992 nodes more") {
		t.Errorf("got %v", err)
	}
}

// TestReservation follows what one name holds on node-c, step by step.
func TestReservation(t *testing.T) {
	at := Place{"node-c", "p"}
	reserve := func(bytes int64) func(*testing.T, *Ledger) {
		return func(t *testing.T, l *Ledger) {
			if _, err := l.Reserve(Request{Name: "v", Pool: "p", Bytes: bytes, Nodes: []string{"node-c"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	commit := func(uid string) func(*testing.T, *Ledger) {
		return func(_ *testing.T, l *Ledger) { l.Commit("v", uid) }
	}
	release := func(_ *testing.T, l *Ledger) { l.Release("v") }
	seen := func(uid string, bytes int64) func(*testing.T, *Ledger) {
		return func(_ *testing.T, l *Ledger) { l.SetVolume(Volume{Name: "v", UID: uid, Place: at, Bytes: bytes}) }
	}
	gone := func(uid string) func(*testing.T, *Ledger) {
		return func(_ *testing.T, l *Ledger) { l.DeleteVolume("v", uid) }
	}
	grow := func(uid string, from, to, generation int64) func(*testing.T, *Ledger) {
		return func(t *testing.T, l *Ledger) {
			if err := l.Grow(Volume{Name: "v", UID: uid, Place: at, Bytes: from, Generation: generation}, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop := func(bytes, generation int64) func(*testing.T, *Ledger) {
		return func(_ *testing.T, l *Ledger) {
			l.StopGrowing(Volume{Name: "v", UID: "1", Place: at, Bytes: bytes, Generation: generation})
		}
	}
	at2 := func(bytes, generation int64) func(*testing.T, *Ledger) {
		return func(_ *testing.T, l *Ledger) {
			l.SetVolume(Volume{Name: "v", UID: "1", Place: at, Bytes: bytes, Generation: generation})
		}
	}
	type steps = []func(*testing.T, *Ledger)
	cases := map[string]struct {
		steps steps
		held  int64
	}{
		"a reservation holds its bytes":                            {steps{reserve(10)}, 10},
		"the same name again holds them once":                      {steps{reserve(10), reserve(10)}, 10},
		"another size replaces the reservation":                    {steps{reserve(10), reserve(20)}, 20},
		"one name holds its largest, as objects can't coexist":     {steps{reserve(10), commit("1"), reserve(20)}, 20},
		"a release frees them":                                     {steps{reserve(10), release}, 0},
		"a release of nothing does nothing":                        {steps{release, seen("1", 10), release}, 10},
		"a committed reservation holds until the object is seen":   {steps{reserve(10), commit("1")}, 10},
		"the object takes them over":                               {steps{reserve(10), commit("1"), seen("1", 10), release}, 10},
		"an object seen before the commit counts once":             {steps{reserve(10), seen("1", 10)}, 10},
		"and takes them over at the commit":                        {steps{reserve(10), seen("1", 10), commit("1"), gone("1")}, 0},
		"seeing it again changes nothing":                          {steps{reserve(10), commit("1"), seen("1", 10), seen("1", 10)}, 10},
		"a volume that grew counts its new size":                   {steps{seen("1", 10), seen("1", 30)}, 30},
		"a growth holds what the volume is to have":                {steps{at2(10, 1), grow("1", 10, 30, 1)}, 30},
		"a growth of a volume that was not seen yet":               {steps{grow("1", 10, 30, 1), at2(10, 1)}, 30},
		"its old size seen again does not end the growth":          {steps{at2(10, 1), grow("1", 10, 30, 1), at2(10, 1)}, 30},
		"its new size does":                                        {steps{at2(10, 1), grow("1", 10, 30, 1), at2(30, 2), at2(10, 3)}, 10},
		"one that is given up holds no more":                       {steps{at2(10, 1), grow("1", 10, 30, 1), stop(10, 1)}, 10},
		"one that was undone is, whatever is still on its way":     {steps{at2(10, 1), grow("1", 10, 30, 1), stop(10, 3), at2(30, 2), at2(10, 3)}, 10},
		"one that is given up keeps what it grew before":           {steps{at2(10, 1), grow("1", 10, 30, 1), grow("1", 30, 40, 2), stop(30, 2)}, 30},
		"a late sight of an earlier growth does not end this one":  {steps{at2(10, 1), grow("1", 10, 20, 3), at2(30, 2), at2(10, 3)}, 20},
		"a volume that is gone frees them":                         {steps{reserve(10), commit("1"), seen("1", 10), gone("1")}, 0},
		"gone without ever being seen frees them too":              {steps{reserve(10), commit("1"), gone("1")}, 0},
		"a late sight of an earlier object of the name: no effect": {steps{reserve(10), commit("2"), seen("1", 10), gone("1")}, 10},
		"a late end of an earlier object spares the new one":       {steps{seen("2", 10), gone("1")}, 10},
		"name reused before the old object's end was seen":         {steps{seen("1", 10), reserve(10), commit("2"), gone("1"), seen("2", 10)}, 10},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := three()
			for _, step := range c.steps {
				step(t, l)
			}
			if held := 300*mi - l.Available(at); held != c.held {
				t.Errorf("%d bytes are held, want %d", held, c.held)
			}
		})
	}
}

func TestWhatANodeHasPromisedByItself(t *testing.T) {
	l := New()
	l.SetNode(Node{Name: "n", Pools: []Pool{{Name: "p", CapacityBytes: 100, ReclaimingBytes: 20, EphemeralBytes: 5, StrayBytes: 15}}})
	l.SetVolume(Volume{Name: "v", UID: "1", Place: Place{"n", "p"}, Bytes: 50})
	if got := l.Available(Place{"n", "p"}); got != 10 {
		t.Errorf("available %d, want 100-20-5-15-50 = 10", got)
	}
}

func TestCapacity(t *testing.T) {
	l := three()
	l.SetNode(Node{Name: "node-c", Refusal: "it is cordoned", Pools: []Pool{{Name: "p", CapacityBytes: 300 * mi}}})
	total, largest := l.Capacity("p")
	if diff := cmp.Diff([]int64{300 * mi, 200 * mi}, []int64{total, largest}); diff != "" {
		t.Errorf("total and largest (-want +got):\n%s", diff)
	}
	if total, largest := l.Capacity("other"); total != 0 || largest != 0 {
		t.Errorf("a pool that nobody has offers %d, %d", total, largest)
	}
}
