package capacity

import "fmt"

// Hold reserves bytes at one place, for what can be nowhere else: a snapshot is where
// its volume is. Unlike Reserve it asks only for room, not whether the node takes new
// volumes: one that is cordoned keeps its volumes, and they may be cut. Commit and
// Release end it. The error is a *NoRoomError.
func (l *Ledger) Hold(name string, at Place, bytes int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.promises[name].find(""); i >= 0 {
		if h := l.promises[name][i]; h.place == at && h.bytes == bytes {
			return nil
		}
		l.change(name, func(p promise) promise { return p.without("") })
	}
	refuse := func(why string) error {
		return &NoRoomError{Pool: at.Pool, Bytes: bytes, Refusals: []Refusal{{at.Node, why}}}
	}
	pool, why := l.pool(at)
	if why != "" {
		return refuse(why)
	}
	if free := max(l.limit(pool)-l.promised[at], 0); free < bytes {
		return refuse(fmt.Sprintf("%d bytes are free", free))
	}
	l.change(name, func(p promise) promise { return append(p, holding{place: at, bytes: bytes}) })
	return nil
}

// pool finds a pool that works, or says why there is none.
func (l *Ledger) pool(at Place) (p Pool, refusal string) {
	n, ok := l.nodes[at.Node]
	if !ok {
		return p, "no csi-ublk node plugin has registered there"
	}
	for _, p := range n.Pools {
		if p.Name == at.Pool {
			return p, p.Refusal
		}
	}
	return p, fmt.Sprintf("it has no pool %q", at.Pool)
}
