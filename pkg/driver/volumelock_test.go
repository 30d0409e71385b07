package driver

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

func TestVolumeLocks(t *testing.T) {
	var l VolumeLocks
	release, _, ok := l.TryAcquire("v1", "NodeStageVolume")
	if !ok {
		t.Fatal("a free volume was refused")
	}
	if _, holder, ok := l.TryAcquire("v1", "NodeUnstageVolume"); ok || holder != "NodeStageVolume" {
		t.Errorf("second caller: ok=%v holder=%q, want refused by NodeStageVolume", ok, holder)
	}
	other, _, ok := l.TryAcquire("v2", "NodeStageVolume")
	if !ok {
		t.Fatal("another volume was refused")
	}
	defer other()
	release()
	again, err := l.Acquire("v1", "NodeUnstageVolume")
	if err != nil {
		t.Fatalf("after release: %v", err)
	}
	release() // the first holder's, a second time: must not free the new holder's lock
	_, err = l.Acquire("v1", "DeleteVolume")
	var busy *BusyError
	if !errors.As(err, &busy) || busy.Holder != "NodeUnstageVolume" || busy.Volume != "v1" {
		t.Errorf("got %v, want a BusyError held by NodeUnstageVolume", err)
	}
	again()
}

func TestVolumeLocksExclude(t *testing.T) {
	var (
		l      VolumeLocks
		wg     sync.WaitGroup
		inside [4]atomic.Int32
	)
	for range 8 {
		wg.Go(func() {
			for n := range 2000 {
				v := n % len(inside)
				release, _, ok := l.TryAcquire(fmt.Sprint(v), "op")
				if !ok {
					continue
				}
				if inside[v].Add(1) != 1 {
					t.Errorf("two holders of volume %d", v)
				}
				inside[v].Add(-1)
				release()
			}
		})
	}
	wg.Wait()
}
