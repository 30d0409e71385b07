package ublk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// Of so many deletions so many must compute for a third of their time at least. One that
// waits for a grace period computes for a tenth of it, if all is slow, and for a
// hundredth usually.
const (
	computeSamples = 7
	computeNeeded  = 5
	computeShare   = 3
	computeRounds  = 3
)

// deletionsCompute says whether deleting a device is computing for the most part: then
// it can't have waited, however long it takes. That is what an emulated machine shows of
// a kernel that does not wait. A ring of its own sees to it that the threads which are
// looked at do nothing but these deletions.
func (c *Control) deletionsCompute(ctx context.Context, o DeviceOptions) (_ bool, err error) {
	own, err := OpenControl(c.opt)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if !fineCPUTime() {
		return false, nil
	}
	// The first one has the kernel make its thread.
	if _, err := own.deletionComputes(ctx, o, nil); err != nil {
		return false, err
	}
	threads, err := own.threads()
	if err != nil {
		return false, err
	}
	// A few of them are what a busy machine shows of either kind: another round.
	for range computeRounds {
		computed := 0
		for range computeSamples {
			c, err := own.deletionComputes(ctx, o, threads)
			if err != nil {
				return false, err
			}
			if c {
				computed++
			}
		}
		if computed >= computeNeeded || computed < computeSamples-computeNeeded {
			return computed >= computeNeeded, nil
		}
	}
	return false, nil
}

// deletionComputes deletes a device, which it makes before, and says whether threads have
// been computing for the most part of that.
func (c *Control) deletionComputes(ctx context.Context, o DeviceOptions, threads []int) (bool, error) {
	victim, err := c.Add(ctx, o)
	if err != nil {
		return false, err
	}
	begin, before := time.Now(), threadsCPUTime(threads)
	at, err := c.run(context.WithoutCancel(ctx), request{op: sys.DelDev, dev: victim.ID})
	used := threadsCPUTime(threads) - before
	if err != nil {
		return false, opError(sys.DelDev.String(), int64(victim.ID), err)
	}
	return computeShare*used >= at.Sub(begin), nil
}

// threads lists those that a command of the calling thread needs: that thread, the
// ring's, and the kernel's that run the commands, which io_uring names after the ring's.
func (c *Control) threads() ([]int, error) {
	ring := int(c.thread.Load())
	list := []int{unix.Gettid(), ring}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("iou-wrk-%d\n", ring)
	for _, task := range tasks {
		comm, err := os.ReadFile(filepath.Join("/proc/self/task", task.Name(), "comm"))
		if err != nil || string(comm) != name {
			continue
		}
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			list = append(list, tid)
		}
	}
	return list, nil
}

// threadsCPUTime is for how long the threads have been computing, together.
func threadsCPUTime(threads []int) (sum time.Duration) {
	for _, tid := range threads {
		sum += threadCPUTime(tid)
	}
	return sum
}

// fineCPUTime says whether this kernel knows for how long a thread has been computing.
// Some count clock ticks only, and so know nothing of a millisecond.
func fineCPUTime() bool {
	self := unix.Gettid()
	for range 3 { // in one of them it is not interrupted
		begin, used := time.Now(), threadCPUTime(self)
		for time.Since(begin) < time.Millisecond {
			continue
		}
		used = threadCPUTime(self) - used
		if took := time.Since(begin); used > took/4 && used <= took {
			return true
		}
	}
	return false
}

// threadCPUTime is for how long a thread of this process has been computing; 0 for one
// that is not there.
func threadCPUTime(tid int) time.Duration {
	// The clock of a thread: CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED of
	// linux/posix-timers.h below the complement of its number.
	var used unix.Timespec
	if unix.ClockGettime(^int32(tid)<<3|6, &used) != nil {
		return 0
	}
	return time.Duration(used.Nano())
}
