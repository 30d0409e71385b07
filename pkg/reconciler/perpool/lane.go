// Package perpool divides a node's objects by the pool that they are in, so that each
// pool has a queue and workers of its own: an object whose pool's disk hangs keeps a
// worker for as long, and must not keep one that others need.
package perpool

import "github.com/csi-ublk/csi-ublk/pkg/pool"

// A Lane is the objects of one pool, or those of pools that the node does not have.
type Lane struct {
	pool       string // "": none of the configured
	configured map[string]bool
}

// Lanes returns one for each configured pool and one for the rest: every object is in
// exactly one of them, always in the same, since neither an object's pool nor the node's
// pools change.
func Lanes(pools *pool.Set) []Lane {
	configured := make(map[string]bool)
	lanes := []Lane{{configured: configured}}
	for _, s := range pools.States() {
		configured[s.Options.Name] = true
		lanes = append(lanes, Lane{pool: s.Options.Name, configured: configured})
	}
	return lanes
}

// Has says whether the objects of a pool are in the lane.
func (l Lane) Has(pool string) bool {
	if l.pool == "" {
		return !l.configured[pool]
	}
	return pool == l.pool
}

// Controller is the name of the lane's controller, one of those called kind.
func (l Lane) Controller(kind string) string {
	if l.pool == "" {
		return kind
	}
	return kind + "-" + l.pool
}
