package capacity

import (
	"slices"
	"sync"
)

// Ledger is safe for concurrent use; no method blocks on anything but its mutex,
// which is never held across a call out.
type Ledger struct {
	mu       sync.Mutex
	nodes    map[string]Node
	promises map[string]promise // by volume name
	promised map[Place]int64    // sum over promises
}

// promise is what one name holds. There is mostly one holding; more while the
// sight of objects lags behind: an object whose end was not seen yet, and the
// reservation or the object that follows it.
type promise []holding

// holding is one object of a name, or the reservation for one.
type holding struct {
	uid   string // of the object; "" for a reservation without one yet
	place Place
	bytes int64
	// growing is what bytes are to become: see Grow. 0 means that they stay.
	growing int64
	// generation that bytes are of, if Grow or StopGrowing said so.
	generation int64
}

// takes is what the holding counts with.
func (h holding) takes() int64 { return max(h.bytes, h.growing) }

// New returns an empty ledger.
func New() *Ledger {
	return &Ledger{
		nodes:    make(map[string]Node),
		promises: make(map[string]promise),
		promised: make(map[Place]int64),
	}
}

// SetNode records what a node offers now. The ledger keeps n.Pools.
func (l *Ledger) SetNode(n Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes[n.Name] = n
}

// DeleteNode forgets a node. Its volumes stay promised until DeleteVolume.
func (l *Ledger) DeleteNode(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.nodes, name)
}

// SetVolume records a volume that exists. A reservation that was committed for
// this very volume is the volume from now on.
func (l *Ledger) SetVolume(v Volume) {
	l.update(v.Name, func(p promise) promise {
		h := holding{uid: v.UID, place: v.Place, bytes: v.Bytes}
		if i := p.find(v.UID); i >= 0 {
			switch known := p[i]; {
			case v.Generation < known.generation:
				return p // the watch is behind what a caller knew
			case known.growing > v.Bytes:
				h.growing = known.growing // not seen yet
			}
		}
		return append(p.without(v.UID), h)
	})
}

// DeleteVolume records that the volume of this name and UID is gone. A volume of
// the same name with another UID, or its reservation, is left alone.
func (l *Ledger) DeleteVolume(name, uid string) {
	l.update(name, func(p promise) promise { return p.without(uid) })
}

// Commit ties the reservation of name to the object created for it: its bytes
// are held until DeleteVolume for that object, whether it was seen or not.
func (l *Ledger) Commit(name, uid string) {
	l.update(name, func(p promise) promise {
		i := p.find("")
		if i < 0 {
			return p
		}
		h := p[i]
		p = p.without("")
		if p.find(uid) >= 0 { // seen before the create call returned
			return p
		}
		return append(p, holding{uid: uid, place: h.place, bytes: h.bytes})
	})
}

// Release drops the reservation of name, because nothing was created for it.
// Without one it does nothing.
func (l *Ledger) Release(name string) {
	l.update(name, func(p promise) promise { return p.without("") })
}

func (p promise) find(uid string) int {
	return slices.IndexFunc(p, func(h holding) bool { return h.uid == uid })
}

func (p promise) without(uid string) promise {
	return slices.DeleteFunc(p, func(h holding) bool { return h.uid == uid })
}

// update changes the promise of one name and keeps the sums right.
func (l *Ledger) update(name string, change func(promise) promise) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.change(name, change)
}

func (l *Ledger) change(name string, change func(promise) promise) {
	p := l.promises[name]
	l.count(p, -1)
	p = change(p)
	l.count(p, +1)
	if len(p) == 0 {
		delete(l.promises, name)
		return
	}
	l.promises[name] = p
}

// count adds sign times the bytes of p to the sums. No two objects of one name
// exist at a time, so in each place the largest holding is all that it can take.
func (l *Ledger) count(p promise, sign int64) {
	for i, h := range p {
		largest := h.takes()
		for j, other := range p {
			if other.place != h.place || i == j {
				continue
			}
			if j < i { // counted with that one
				largest = 0
				break
			}
			largest = max(largest, other.takes())
		}
		l.add(h.place, sign*largest)
	}
}

func (l *Ledger) add(at Place, bytes int64) {
	if l.promised[at] += bytes; l.promised[at] == 0 {
		delete(l.promised, at)
	}
}

// limit is what may be promised in a pool to the volumes that the ledger knows.
func (l *Ledger) limit(p Pool) int64 {
	return max(p.CapacityBytes-p.ReclaimingBytes-p.EphemeralBytes-p.StrayBytes, 0)
}
