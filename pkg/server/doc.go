// Package server is the device server of a node: it turns files in the node's
// pools into ublk devices, and keeps them alive.
//
// It issues every control command of the driver, each with a deadline, and moves
// no byte: that is done by worker processes (package worker), which it starts,
// watches and replaces. What it has made is in a journal on disk, so that the
// next server takes over where this one ended, however it ended.
//
// One volume up (attach.go): open the file, ADD_DEV,
// SET_PARAMS, a worker arms every tag, START_DEV, verify, journal live. Down
// (detach.go) is the reverse, and its second half runs in the background.
//
// Two rules must hold, whatever fails:
//
//   - No END_USER_RECOVERY before the dead worker's file I/O is over (fence.go,
//     recover.go). A write that its process left behind may reach the file
//     seconds later and would overwrite what was acknowledged since.
//   - A device that does not carry this server's owner tag (owner.go) is never
//     touched.
package server
