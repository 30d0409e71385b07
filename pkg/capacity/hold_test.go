package capacity

import (
	"errors"
	"syscall"
	"testing"
)

func TestHold(t *testing.T) {
	at := Place{"n", "p"}
	newLedger := func() *Ledger {
		l := New()
		l.SetNode(Node{Name: "n", Refusal: "it is cordoned", Pools: []Pool{{Name: "p", CapacityBytes: 100}, {Name: "broken", CapacityBytes: 100, Refusal: "it does not work"}}})
		return l
	}
	free := func(l *Ledger) int64 {
		l.SetNode(Node{Name: "n", Pools: []Pool{{Name: "p", CapacityBytes: 100}}})
		return l.Available(at)
	}
	l := newLedger()
	if err := l.Hold("s", at, 60); err != nil {
		t.Errorf("a node that takes no new volume: %v", err)
	}
	if err := l.Hold("s", at, 60); err != nil {
		t.Errorf("repeated: %v", err)
	}
	if err := l.Hold("other", at, 60); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the same bytes twice: %v", err)
	}
	for why, place := range map[string]Place{"no such node": {"x", "p"}, "no such pool": {"n", "x"}, "a broken pool": {"n", "broken"}} {
		if err := l.Hold("other", place, 1); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", why, err)
		}
	}
	l.Commit("s", "uid")
	l.SetVolume(Volume{Name: "s", UID: "uid", Place: at, Bytes: 20})
	if got := free(l); got != 80 {
		t.Errorf("%d bytes free when it turned out to have 20", got)
	}
	l.DeleteVolume("s", "uid")
	l = newLedger()
	if err := l.Hold("s", at, 60); err != nil {
		t.Fatal(err)
	}
	l.Release("s")
	if got := free(l); got != 100 {
		t.Errorf("%d bytes free after a release", got)
	}
}
