package ublk

import (
	"testing"
	"unsafe"
)

func TestBuffersAreDistinctAndReused(t *testing.T) {
	p, err := newBufferPool(3, 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer p.free()
	a, b, c := p.take(), p.take(), p.take()
	if got := p.take(); got != noBuffer {
		t.Errorf("a fourth buffer: %d", got)
	}
	if a == b || b == c || a == c {
		t.Errorf("buffers %d %d %d", a, b, c)
	}
	if d := uintptr(p.at(b)) - uintptr(p.at(a)); d != 8192 && d != ^uintptr(8191) {
		t.Errorf("buffers %d bytes apart", d)
	}
	if len(p.bytes(a, 100)) != 100 || unsafe.Pointer(&p.bytes(a, 100)[0]) != p.at(a) {
		t.Error("bytes of a buffer are not its own")
	}
	p.put(b)
	if got := p.take(); got != b {
		t.Errorf("got %d, want the one given back last, %d", got, b)
	}
}

func TestWaitingRequestsAreServedInOrder(t *testing.T) {
	var f fifo
	tags := make([]tag, 4)
	for i := range tags {
		tags[i].index = uint16(i)
		f.push(&tags[i])
	}
	for want := range uint16(2) {
		if got := f.pop().index; got != want {
			t.Errorf("tag %d, want %d", got, want)
		}
	}
	f.push(&tags[0])
	for _, want := range []uint16{2, 3, 0} {
		if got := f.pop().index; got != want {
			t.Errorf("tag %d, want %d", got, want)
		}
	}
	if f.head != nil || f.tail != nil {
		t.Error("not empty at the end")
	}
}

func TestUserDataComesBackWhole(t *testing.T) {
	for _, slot := range []uint32{0, 1, 1 << 20, 1<<32 - 1} {
		for _, s := range []step{stepWake, stepAlone} {
			for _, tag := range []uint16{0, 4095, 65535} {
				if a, b, c := splitUserData(userData(slot, s, tag)); a != slot || b != s || c != tag {
					t.Errorf("%d %d %d became %d %d %d", slot, s, tag, a, b, c)
				}
			}
		}
	}
}

func TestPoolAndFifoDoNotAllocate(t *testing.T) {
	p, err := newBufferPool(4, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer p.free()
	var f fifo
	tags := make([]tag, 4)
	if n := testing.AllocsPerRun(100, func() {
		for i := range tags {
			tags[i].buf = p.take()
			f.push(&tags[i])
		}
		for range tags {
			p.put(f.pop().buf)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
