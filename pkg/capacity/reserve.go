package capacity

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// Request asks for a place for a new volume.
type Request struct {
	Name  string
	Pool  string
	Bytes int64
	// Nodes are the nodes that the volume may be on; nil means any.
	Nodes []string
	// Preferred nodes are tried first, in this order, if they are in Nodes. Of
	// the others the one with the most room is taken.
	Preferred []string
}

// Reserve picks a place for a volume and holds its bytes there, in one step,
// until Commit names the object created for it or Release gives it up. A name
// that has a reservation gets the same place again if the request still allows
// it; otherwise the old one is dropped first. The error is a *NoRoomError.
func (l *Ledger) Reserve(q Request) (Place, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.promises[q.Name].find(""); i >= 0 {
		h := l.promises[q.Name][i]
		if h.bytes == q.Bytes && h.place.Pool == q.Pool && q.allows(h.place.Node) {
			return h.place, nil
		}
		l.change(q.Name, func(p promise) promise { return p.without("") })
	}
	at, err := l.pick(q)
	if err != nil {
		return Place{}, err
	}
	l.change(q.Name, func(p promise) promise { return append(p, holding{place: at, bytes: q.Bytes}) })
	return at, nil
}

func (q Request) allows(node string) bool {
	return q.Nodes == nil || slices.Contains(q.Nodes, node)
}

// pick finds the place; it changes nothing.
func (l *Ledger) pick(q Request) (Place, error) {
	for _, name := range q.Preferred {
		if _, why := l.room(name, q.Pool, q.Bytes); why == "" && q.allows(name) {
			return Place{name, q.Pool}, nil
		}
	}
	candidates := q.Nodes
	if candidates == nil {
		for name := range l.nodes {
			candidates = append(candidates, name)
		}
		slices.Sort(candidates) // the same state gives the same answer
	}
	best, most := "", int64(-1)
	refused := &NoRoomError{Pool: q.Pool, Bytes: q.Bytes}
	for _, name := range candidates {
		free, why := l.room(name, q.Pool, q.Bytes)
		if why != "" {
			refused.Refusals = append(refused.Refusals, Refusal{name, why})
			continue
		}
		if free > most {
			best, most = name, free
		}
	}
	if best == "" {
		return Place{}, refused
	}
	return Place{best, q.Pool}, nil
}

// room returns the bytes that may still be promised at a place, and why it can't
// take a volume of that size; "" if it can.
func (l *Ledger) room(node, pool string, bytes int64) (free int64, refusal string) {
	n, ok := l.nodes[node]
	if !ok {
		return 0, "no csi-ublk node plugin has registered there"
	}
	i := slices.IndexFunc(n.Pools, func(p Pool) bool { return p.Name == pool })
	switch {
	case n.Refusal != "":
		return 0, n.Refusal
	case i < 0:
		return 0, fmt.Sprintf("it has no pool %q", pool)
	case n.Pools[i].Refusal != "":
		return 0, n.Pools[i].Refusal
	}
	free = max(l.limit(n.Pools[i])-l.promised[Place{node, pool}], 0)
	if free < bytes {
		return free, fmt.Sprintf("%d bytes are free", free)
	}
	return free, ""
}

// Available is how many bytes a new volume at a place may have; 0 when it takes
// none. One volume can take them all.
func (l *Ledger) Available(at Place) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	free, _ := l.room(at.Node, at.Pool, 0)
	return free
}

// Capacity sums what is available in the pools of one name: all nodes together,
// and the most that one node can take, which is the largest possible volume.
func (l *Ledger) Capacity(pool string) (total, largest int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.nodes {
		free, _ := l.room(name, pool, 0)
		total += free
		largest = max(largest, free)
	}
	return total, largest
}

// Refusal says why one node was not taken.
type Refusal struct {
	Node   string
	Reason string
}

// NoRoomError says that no candidate can take the volume, and why each can't.
// It matches syscall.ENOSPC.
type NoRoomError struct {
	Pool     string
	Bytes    int64
	Refusals []Refusal // empty when there was no candidate at all
}

// shown bounds the message: it ends in an event of the PVC.
const shown = 8

func (e *NoRoomError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no node can take %d bytes in pool %q", e.Bytes, e.Pool)
	if len(e.Refusals) == 0 {
		b.WriteString(": no csi-ublk node plugin has registered on any node")
	}
	for i, r := range e.Refusals {
		if i == shown {
			fmt.Fprintf(&b, "; and %d nodes more", len(e.Refusals)-shown)
			break
		}
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s: %s", sep, r.Node, r.Reason)
	}
	return b.String()
}

// Unwrap makes errors.Is(err, syscall.ENOSPC) true.
func (e *NoRoomError) Unwrap() error { return syscall.ENOSPC }
