// Package metadata brings questions about the blocks of a snapshot to the node that has
// it. The role metadata, beside the sidecar that backup programs call, is given the
// questions (Forwarder); the node plugin answers them on a TCP port (NewNodeServer).
//
// Neither end needs a certificate from anybody. The node plugin makes one when it
// starts and writes its fingerprint and address into the status of its UblkNode, which
// no other node may write; the forwarder takes that one only. The forwarder shows a
// token of its service account, made for this use alone, and the node plugin has the API
// server say whose it is.
package metadata
