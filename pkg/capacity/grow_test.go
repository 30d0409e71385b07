package capacity

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func TestGrow(t *testing.T) {
	at := Place{"node-a", "p"}
	v := Volume{Name: "v", UID: "1", Place: at, Bytes: 10 * mi}
	for name, c := range map[string]struct {
		prepare func(*Ledger)
		to      int64
		refusal string // part of the error
		most    int64  // of the error; 0: it is no question of size
	}{
		"all that is free":      {to: 100 * mi},
		"one byte more":         {to: 100*mi + 1, refusal: "94371840 bytes free, and the volume needs 94371841 more to have 104857601", most: 100 * mi},
		"to what it has":        {to: 10 * mi},
		"beside another volume": {func(l *Ledger) { l.SetVolume(Volume{Name: "w", Place: at, Bytes: 60 * mi}) }, 41 * mi, "31457280 bytes free", 40 * mi},
		"on a node that is cordoned": {func(l *Ledger) {
			l.SetNode(Node{"node-a", []Pool{{Name: "p", CapacityBytes: 100 * mi}}, "it is cordoned"})
		}, 50 * mi, "", 0},
		"in a pool that does not work": {func(l *Ledger) {
			l.SetNode(Node{Name: "node-a", Pools: []Pool{{Name: "p", CapacityBytes: 100 * mi, Refusal: "it is broken"}}})
		}, 50 * mi, "node node-a can't grow the volume: it is broken", 0},
		"in a pool that is gone": {func(l *Ledger) { l.SetNode(Node{Name: "node-a"}) }, 50 * mi, `no pool "p"`, 0},
		"on a node that is gone": {func(l *Ledger) { l.DeleteNode("node-a") }, 50 * mi, "no csi-ublk node plugin", 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := three()
			l.SetVolume(v)
			if c.prepare != nil {
				c.prepare(l)
			}
			before := l.promised[at]
			err := l.Grow(v, c.to)
			if c.refusal == "" {
				if err != nil || l.promised[at] != before+c.to-v.Bytes {
					t.Errorf("error %v, %d promised", err, l.promised[at])
				}
				return
			}
			var e *GrowthError
			if !errors.As(err, &e) || !strings.Contains(err.Error(), c.refusal) || errors.Is(err, syscall.ERANGE) != (c.most > 0) || c.most > 0 && e.MostBytes() != c.most {
				t.Errorf("got %v, want %q and at most %d", err, c.refusal, c.most)
			}
			if l.promised[at] != before {
				t.Errorf("a refusal changes what is promised from %d to %d", before, l.promised[at])
			}
		})
	}
}
