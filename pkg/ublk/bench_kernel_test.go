//go:build ublk && linux

package ublk

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkIO reports, besides the time, the CPU time of both sides per I/O:
// the user's system calls, the kernel and the server, as one process is all.
func BenchmarkIO(b *testing.B) {
	c := control(b)
	file, _ := fileTarget(b, newFS(b, "xfs").dir, 64<<20, true)
	for _, target := range []struct {
		name   string
		params Params
		Target
	}{
		{"null", ramParams(64 << 20), Null()},
		{"memory", ramParams(64 << 20), FromBackend(newRAM(64 << 20))},
		{"file", file.Info().Params(), file},
	} {
		for _, write := range []bool{false, true} {
			for _, size := range []int{4 << 10, 128 << 10} {
				for _, depth := range []int{1, 16} {
					op := "read"
					if write {
						op = "write"
					}
					b.Run(fmt.Sprintf("%s/%s/%dk/q%d", target.name, op, size>>10, depth), func(b *testing.B) {
						r := newTestRing(b, RingOptions{})
						s := serve(b, c, r, DeviceOptions{ID: -1}, target.params, target)
						benchIO(b, s, write, size, depth)
					})
				}
			}
		}
	}
}

func benchIO(b *testing.B, s *served, write bool, size, depth int) {
	f := s.disk(b)
	fd := int(f.Fd())
	bufs := make([][]byte, depth)
	for i := range bufs {
		bufs[i] = aligned(b, size)
	}
	blocks := int64(64 << 20 / size)
	b.SetBytes(int64(size))
	b.ResetTimer()
	before := cpuTime(b)
	var all sync.WaitGroup
	for i := range depth {
		all.Go(func() {
			for n := i; n < b.N; n += depth {
				off := int64(n*7919) % blocks * int64(size)
				var err error
				if write {
					_, err = unix.Pwrite(fd, bufs[i], off)
				} else {
					_, err = unix.Pread(fd, bufs[i], off)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
	f.Close()
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
