// Package capacity is the ledger of promised bytes: which pool of which node
// may still take how much.
//
// It is pure bookkeeping, without clock, I/O or Kubernetes. Its owner feeds it
// what the nodes offer (SetNode) and which volumes exist (SetVolume), and asks
// it for a place before it creates a volume (Reserve). A reservation holds its
// bytes until the volume itself is seen, so that two bursts can't take the same
// bytes, whatever the delay between the creation of a volume and its sight.
//
// No method costs more with more volumes.
package capacity

// Pool is what one pool of a node offers.
type Pool struct {
	Name            string
	CapacityBytes   int64 // what may be promised
	ReclaimingBytes int64 // of deleted volumes, not free yet
	// EphemeralBytes are the full sizes of volumes that the node made by itself:
	// promised, as those of volumes are, but not known as such.
	EphemeralBytes int64
	// StrayBytes are those of volumes and snapshots that are there and that no
	// object names.
	StrayBytes int64
	// Refusal says why the pool takes no new volume; "" means it does.
	Refusal string
}

// Node is what a node offers.
type Node struct {
	Name  string
	Pools []Pool
	// Refusal says why the node takes no new volume: it is cordoned, not ready,
	// being deleted. "" means it does.
	Refusal string
}

// Volume is a volume that exists.
type Volume struct {
	Name string
	// UID tells a volume from an earlier one of the same name.
	UID   string
	Place Place
	Bytes int64
	// Generation counts up when what the volume should be changes. Only Grow needs it.
	Generation int64
}

// Place is a pool on a node.
type Place struct {
	Node string
	Pool string
}
