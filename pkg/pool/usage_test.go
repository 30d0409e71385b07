package pool

import (
	"errors"
	"testing"
)

func TestReserve(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		want   int64
	}{
		"no reserve":              {func(*Options) {}, 64 * mib},
		"a size":                  {func(o *Options) { o.ReserveBytes = 4 * mib }, 60 * mib},
		"a percentage":            {func(o *Options) { o.ReservePercent = 50 }, 32 * mib},
		"more than there is left": {func(o *Options) { o.ReserveBytes = 100 * mib }, 0},
		"overcommit":              {func(o *Options) { o.ReservePercent, o.Overcommit = 50, 1.5 }, 48 * mib},
		"overcommit of nothing":   {func(o *Options) { o.ReserveBytes, o.Overcommit = 100*mib, 2 }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := usage(t, newPool(t, c.change)).CapacityBytes; got < c.want-100 || got > c.want {
				t.Errorf("capacity %d, want %d", got, c.want)
			}
		})
	}
}

// A pool takes volumes up to what it may promise, and not one byte more.
func TestOvercommit(t *testing.T) {
	p := newPool(t, func(o *Options) { o.Overcommit = 2 })
	for _, v := range []string{"a", "b"} {
		if err := p.Create(v, 60*mib); err != nil {
			t.Errorf("volume %s: %v", v, err)
		}
	}
	var full *FullError
	if err := p.Create("c", 9*mib); !errors.As(err, &full) {
		t.Errorf("129 MiB in a pool of 64 that may promise 128: %v", err)
	}
	if err := p.Grow("b", 67*mib); err != nil {
		t.Errorf("growth: %v", err)
	}
}

func TestBytesOfIDs(t *testing.T) {
	p := newPool(t, nil)
	for _, v := range []string{"known", "stray", "going", "inline"} {
		if err := p.Create(v, 10*mib); err != nil {
			t.Fatal(err)
		}
	}
	p.mark("inline", &Ephemeral{})
	p.mu.Lock()
	p.countSnapshot("known", Snapshot{AllocatedBytes: 1}) // of the volume's name: another thing
	p.countSnapshot("stray", Snapshot{AllocatedBytes: 2})
	p.mu.Unlock()
	ids := p.IDs()
	if len(ids.Volumes) != 3 || len(ids.Snapshots) != 2 {
		t.Errorf("the pool has %v", ids)
	}
	delete(ids.Volumes, "known")
	delete(ids.Snapshots, "known")
	if err := errors.Join(p.Delete("going"), p.Create("later", 10*mib)); err != nil {
		t.Fatal(err)
	}
	if got := p.BytesOf(ids); got != 10*mib+2 {
		t.Errorf("%d bytes, want %d", got, 10*mib+2)
	}
}
