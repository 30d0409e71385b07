package capacity

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// TestBurst lets two bursts at once reserve more than there is, while volumes
// show up late and out of order. What was promised never passes the capacity,
// and what fits is not refused.
func TestBurst(t *testing.T) {
	const capacity, size = 64, 1
	l := New()
	for _, n := range []string{"a", "b"} {
		l.SetNode(Node{Name: n, Pools: []Pool{{Name: "p", CapacityBytes: capacity / 2}}})
	}
	var granted atomic.Int64
	var wg sync.WaitGroup
	for burst := range 2 {
		for i := range capacity {
			wg.Go(func() {
				name := fmt.Sprintf("v-%d-%d", burst, i)
				at, err := l.Reserve(Request{Name: name, Pool: "p", Bytes: size})
				if err != nil {
					return
				}
				granted.Add(size)
				v := Volume{Name: name, UID: name, Place: at, Bytes: size}
				if i%2 == 0 { // the watch may be faster than the create call
					l.SetVolume(v)
					l.Commit(name, v.UID)
				} else {
					l.Commit(name, v.UID)
					l.SetVolume(v)
				}
			})
		}
	}
	wg.Wait()
	if granted.Load() != capacity {
		t.Errorf("%d bytes granted of %d", granted.Load(), capacity)
	}
	if total, _ := l.Capacity("p"); total != 0 {
		t.Errorf("%d bytes left", total)
	}
	if len(l.promises) != capacity {
		t.Errorf("%d promises kept for %d volumes", len(l.promises), capacity)
	}
}

// FuzzLedger runs random steps against the ledger and against the truth: a plain
// list of what was created. It checks after every step that no place has more
// promised than it holds, and at the end that nothing is left behind.
func FuzzLedger(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed, uint16(400))
	}
	f.Add(uint64(97), uint16(438)) // a growth that was undone, and seen only then
	f.Fuzz(func(t *testing.T, seed uint64, steps uint16) {
		w := &world{t: t, l: New(), rnd: rand.New(rand.NewPCG(seed, 1)), objects: map[string]Volume{}}
		for _, n := range []string{"a", "b", "c"} {
			w.l.SetNode(Node{Name: n, Pools: []Pool{{Name: "p", CapacityBytes: 100}}})
		}
		for range steps % 2000 {
			w.step()
			w.check()
		}
		w.drain()
	})
}

// world is an API server with a slow watch: objects exist at once, the ledger
// sees them later, in order per name.
type world struct {
	t       *testing.T
	l       *Ledger
	rnd     *rand.Rand
	objects map[string]Volume // what exists
	watch   []func()          // events not delivered yet
	uids    int
}

func (w *world) step() {
	name := fmt.Sprint("v", w.rnd.IntN(12))
	v, exists := w.objects[name]
	switch w.rnd.IntN(6) {
	case 0, 1: // CreateVolume
		if exists {
			return
		}
		q := Request{Name: name, Pool: "p", Bytes: 1 + w.rnd.Int64N(60)}
		if w.rnd.IntN(2) == 0 {
			q.Nodes = []string{"a", "b"}
		}
		at, err := w.l.Reserve(q)
		if err != nil {
			return
		}
		if w.rnd.IntN(4) == 0 { // the create call was refused
			w.l.Release(name)
			return
		}
		w.uids++
		v = Volume{Name: name, UID: fmt.Sprint(w.uids), Place: at, Bytes: q.Bytes}
		w.objects[name] = v
		w.watch = append(w.watch, func() { w.l.SetVolume(v) })
		if w.rnd.IntN(2) == 0 {
			w.deliver()
		}
		w.l.Commit(name, v.UID)
	case 2: // DeleteVolume
		if exists {
			delete(w.objects, name)
			w.watch = append(w.watch, func() { w.l.DeleteVolume(name, v.UID) })
		}
	case 3:
		w.deliver()
	case 4, 5: // ControllerExpandVolume
		if exists {
			w.grow(v)
		}
	}
}

// grow asks for more, by an object that may be as the watch has shown it last.
func (w *world) grow(v Volume) {
	to := v.Bytes + w.rnd.Int64N(30)
	if err := w.l.Grow(v, to); err != nil {
		return
	}
	if w.rnd.IntN(4) == 0 { // the patch was refused
		w.l.StopGrowing(v)
		return
	}
	grown := w.change(v, to)
	if w.rnd.IntN(3) == 0 { // the node had no room
		w.l.StopGrowing(w.change(grown, v.Bytes))
	}
}

func (w *world) change(v Volume, bytes int64) Volume {
	v.Bytes, v.Generation = bytes, v.Generation+1
	w.objects[v.Name] = v
	w.watch = append(w.watch, func() { w.l.SetVolume(v) })
	if w.rnd.IntN(2) == 0 {
		w.deliver()
	}
	return v
}

func (w *world) deliver() {
	if n := len(w.watch); n > 0 {
		w.watch[0]()
		w.watch = w.watch[1:]
	}
}

func (w *world) check() {
	used := map[Place]int64{}
	for _, v := range w.objects {
		used[v.Place] += v.Bytes
	}
	for at, bytes := range used {
		if bytes > 100 {
			w.t.Fatalf("%v: %d bytes of volumes in a pool of 100", at, bytes)
		}
	}
	sums := map[Place]int64{}
	for _, p := range w.l.promises {
		one := New()
		one.count(p, +1)
		for at, bytes := range one.promised {
			sums[at] += bytes
		}
	}
	for at, bytes := range w.l.promised {
		if bytes < used[at] || bytes != sums[at] {
			w.t.Fatalf("%v: %d bytes promised, %d by name, %d exist", at, bytes, sums[at], used[at])
		}
	}
}

func (w *world) drain() {
	for len(w.watch) > 0 {
		w.deliver()
	}
	used := map[Place]int64{}
	for _, v := range w.objects {
		used[v.Place] += v.Bytes
	}
	if !maps.Equal(used, w.l.promised) {
		w.t.Fatalf("all is seen, and %v promised where %v exist", w.l.promised, used)
	}
	for name, v := range w.objects {
		w.watch = append(w.watch, func() { w.l.DeleteVolume(name, v.UID) })
	}
	for len(w.watch) > 0 {
		w.deliver()
	}
	if len(w.l.promises) != 0 || len(w.l.promised) != 0 {
		w.t.Fatalf("left behind: %v %v", w.l.promises, w.l.promised)
	}
}

// BenchmarkReserve shows that the cost does not grow with the volumes.
func BenchmarkReserve(b *testing.B) {
	for _, volumes := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("volumes=%d", volumes), func(b *testing.B) {
			l := New()
			for n := range 10 {
				l.SetNode(Node{Name: fmt.Sprint("n", n), Pools: []Pool{{Name: "p", CapacityBytes: 1 << 50}}})
			}
			for v := range volumes {
				l.SetVolume(Volume{Name: fmt.Sprint("v", v), UID: "1", Place: Place{fmt.Sprint("n", v%10), "p"}, Bytes: 1 << 30})
			}
			for b.Loop() {
				if _, err := l.Reserve(Request{Name: "new", Pool: "p", Bytes: 1 << 30}); err != nil {
					b.Fatal(err)
				}
				l.Release("new")
				l.Capacity("p")
			}
		})
	}
}
