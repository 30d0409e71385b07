// Package ublk serves block devices from user space through Linux's ublk driver
// (drivers/block/ublk_drv.c, include/uapi/linux/ublk_cmd.h).
//
// # Model
//
// A device has two faces. Its user sees a disk, /dev/ublkbN. Its server opens
// /dev/ublkcN, and finds there the disk's requests: each queue of the device has
// a number of tags, and each tag brings one request at a time, to be answered
// before it can bring the next.
//
// Control makes and removes devices:
//
//	Add        /dev/ublkcN appears
//	SetParams  what the disk looks like
//	  (the server calls OpenDevice, and Serve for every queue)
//	Start      /dev/ublkbN appears
//	Stop       /dev/ublkbN is gone, and the tags come back (Device.Done)
//	Delete     /dev/ublkcN is gone
//
// A Ring answers requests: one io_uring on one thread, for as many queues of as
// many devices as are given to it. A Target says where the bytes are: File (the
// kernel moves them between file and request, Go never sees them), FromBackend
// (Go code answers), Null (benchmarks). Memory for data belongs to the ring and
// follows requests in flight; an idle device needs none.
//
// Data moves by UBLK_F_USER_COPY, which needs Linux 6.5 or newer; on newer
// kernels more is possible (Features), and nothing is decided by a version.
//
// # Keeping requests back
//
// Device.Hold keeps new requests back until Device.Resume, and returns when the target
// is still: no request that was answered is missing there then, and none is half done.
// It ends by itself after a while. Device.SetLimits bounds rates (Limits) while the
// device is served. Both act before a request begins; what waits has no buffer.
//
// # Taking a device down
//
// In this order:
//
//  1. Control.Stop. The kernel first writes back what it has cached, so the
//     server must still be serving.
//  2. Wait for Device.Done.
//  3. Control.DeleteAsync, while the char device is still open: the slow part of
//     the deletion then runs in Close's wake, outside the driver's global lock.
//     Without it (errors.ErrUnsupported): Control.Delete after step 4.
//  4. Device.Close. To close before Done is refused.
//
// # A server that dies
//
// With UserRecovery and UserRecoveryReissue the disk survives: its I/O waits,
// and what was in flight is handed out again. Another process continues:
// Control.StartRecovery (EBUSY until the kernel is done with the old process),
// OpenDevice, Serve, Control.EndRecovery. Parameters stay as they were.
//
// Before EndRecovery the caller must know that no write of the dead process can
// reach the file any more, or it may overwrite a newer one: see
// RingOptions.Fence.
//
// # Threads
//
// The kernel ties a queue to the thread that armed it, and a ring to the thread
// that made it. A Ring therefore owns a thread for life, and a Control another
// one. Code of a Backend runs on the ring's thread: while it runs, no device of
// that ring is served. GOMAXPROCS should be the number of rings plus two.
//
// A process that serves devices must never wait for one of them: not open, mount,
// map or execute anything that lies on its own disks, and not call Stop or
// Delete for them from a Backend. In production control commands belong into
// another process: one that is killed in the middle of a STOP_DEV for a device
// it serves itself can stay unkillable.
//
// # Errors
//
// Errors of the kernel are an OpError around a syscall.Errno. A device that does
// not exist is ENODEV. Features that a kernel lacks are errors.ErrUnsupported. A
// command past its deadline is a context error, with ErrWedged if the kernel did
// not let go of it.
package ublk
