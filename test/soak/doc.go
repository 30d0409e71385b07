// Package soak runs a node through churn and faults for as long as it is told:
// volumes are made, staged, published, written, read back, released and removed
// from many goroutines, calls are repeated, doubled, made in the wrong order and cut
// short, strangers hold disks open, and worker, server and node plugin are killed
// meanwhile, alone and together. Volumes are cut while they are written, and what is
// restored lives beside them. The disk of one pool becomes slow for seconds, that of
// another fails. Every byte that is read is checked against what was written, an I/O
// error is one unless the disk below fails, and at the end nothing may be left.
//
// It drives the real binary's processes by the sockets that kubelet uses. The
// tests need root and a ublk driver (build tag soak); make soak MINUTES=30 runs
// them in a guest.
package soak
