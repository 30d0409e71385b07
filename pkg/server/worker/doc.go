// Package worker is the process that moves the bytes: a few rings on locked
// threads that serve the queues of many devices, and nothing else. The server gives
// a process the volumes of one file system only. It issues no
// control command, decides nothing and knows no volume; the device server tells
// it what to open and when to let go.
//
// Run is the child's whole life, Process is the server's handle on a child. The
// two talk over a socket pair in batches (frame.go). The child ends when the
// socket does, so that a worker never outlives its server: the kernel then
// holds the devices' I/O until the next server recovers them.
//
// A process has a fence (a named pipe, see Options.FencePath): its write end is
// registered with every ring and nowhere else, so that the pipe has a writer
// for exactly as long as file I/O of this process may still be under way, also
// after SIGKILL.
package worker
