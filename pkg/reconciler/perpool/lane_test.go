package perpool

import (
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

func TestEveryPoolIsInOneLane(t *testing.T) {
	state := t.TempDir()
	pools, err := pool.NewSet([]pool.Options{
		{Name: "a", Kind: pool.KindPath, StateDir: state, Path: t.TempDir()},
		{Name: "b", Kind: pool.KindPath, StateDir: state, Path: t.TempDir()},
	})
	if err != nil {
		t.Fatal(err)
	}
	lanes := Lanes(pools)
	for name, controller := range map[string]string{"a": "volume-a", "b": "volume-b", "gone": "volume", "": "volume"} {
		var in []string
		for _, l := range lanes {
			if l.Has(name) {
				in = append(in, l.Controller("volume"))
			}
		}
		if len(in) != 1 || in[0] != controller {
			t.Errorf("objects of pool %q are in the lanes %q, want %s", name, in, controller)
		}
	}
}
