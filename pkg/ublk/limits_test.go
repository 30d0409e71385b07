package ublk

import (
	"math/rand/v2"
	"testing"
	"time"
)

// play sends requests as fast as the limits let them pass, for a time of the test's own
// clock that wakes up to late nanoseconds after it should, and counts.
func play(l *limiter, d direction, size uint64, from, until, late int64) (n uint64) {
	r := rand.New(rand.NewPCG(1, 2))
	for now := from; now < until; {
		due, ok := l.take(d, size, now)
		switch {
		case ok:
			n++
		case late > 0:
			now = due + r.Int64N(late)
		default:
			now = due
		}
	}
	return n
}

func TestRatesAreKept(t *testing.T) {
	const second = int64(time.Second)
	for name, c := range map[string]struct {
		limits    Limits
		direction direction
		size      uint64
		late      int64
		want      uint64 // requests in ten seconds
	}{
		"requests in total":           {Limits{IOPS: 1000}, reading, 4096, 0, 10000},
		"requests of one direction":   {Limits{WriteIOPS: 250}, writing, 4096, 0, 2500},
		"bytes":                       {Limits{Bytes: 10 << 20}, reading, 4096, 0, 25600},
		"the narrowest counts":        {Limits{IOPS: 1000, ReadIOPS: 300, Bytes: 1 << 30}, reading, 4096, 0, 3000},
		"requests above the burst":    {Limits{WriteBytes: 1 << 20}, writing, 512 << 10, 0, 20},
		"a thread that wakes late":    {Limits{IOPS: 20000}, reading, 512, 20e6, 200000},
		"a rate that divides nothing": {Limits{IOPS: 7}, reading, 512, 0, 70},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimiter(c.limits, 0)
			got := play(l, c.direction, c.size, 0, 10*second, c.late)
			if off := float64(got)/float64(c.want) - 1; off < -0.01 || off > 0.05 {
				t.Errorf("%d requests in ten seconds, want %d", got, c.want)
			}
		})
	}
}

func TestTheOtherDirectionIsFree(t *testing.T) {
	l := newLimiter(Limits{WriteIOPS: 1}, 0)
	for range 1000 {
		if _, ok := l.take(reading, 4096, 0); !ok {
			t.Fatal("a limit of writes stops reads")
		}
	}
}

func TestAnIdleDeviceSavesUpItsBurstAndNoMore(t *testing.T) {
	l := newLimiter(Limits{IOPS: 1000, Burst: 50 * time.Millisecond}, 0)
	hour := int64(time.Hour)
	n := 0
	for {
		if _, ok := l.take(reading, 4096, hour); !ok {
			break
		}
		n++
	}
	if n < 50 || n > 51 {
		t.Errorf("%d requests at once after an hour, want those of 50 ms", n)
	}
}

func TestNoLimitsAreNoLimiter(t *testing.T) {
	if newLimiter(Limits{Burst: time.Second}, 0) != nil {
		t.Error("a device without limits pays for them")
	}
}

func TestTakingAllocatesNothing(t *testing.T) {
	l := newLimiter(Limits{IOPS: 10, Bytes: 10}, 0)
	now := int64(0)
	if n := testing.AllocsPerRun(100, func() {
		now += int64(time.Hour)
		l.take(writing, 4096, now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
