// Package orphan is the controller's side of lost nodes: it ends what nobody on
// a node is left to end, so that deleting a Node object is all the cleaning that
// a dead node needs.
//
//   - A UblkVolume that is to go, on a node that does not exist, loses its
//     finalizer and goes.
//   - One that is not to go is marked not ready, reason NodeGone: its data are
//     lost, and whoever owns the claim decides.
//   - UblkSnapshots alike.
//   - A UblkVolume whose file was removed, and whose object was left because the
//     deletion was interrupted, goes.
//   - A UblkNode without a Node goes.
//
// A node that exists and is not ready is left alone: it may come back.
package orphan
