package pool

import (
	"errors"
	"io/fs"
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	p := newPool(t, nil)
	if err := p.Create("v", mib); err != nil {
		t.Fatal(err)
	}
	want := func(l Limits) {
		t.Helper()
		if got, err := p.Limits("v"); err != nil || got != l {
			t.Errorf("%+v, %v; want %+v", got, err, l)
		}
	}
	want(Limits{})
	full := Limits{1, 2, 3, 4 << 40, 5, 6, 1500 * time.Millisecond}
	for _, l := range []Limits{full, {IOPS: 7}, {}, {}} {
		if err := p.SetLimits("v", l); err != nil {
			t.Fatal(err)
		}
		want(l)
	}
	if err := p.SetLimits("v", full); err != nil {
		t.Fatal(err)
	}
	// Neither growth nor the next plugin loses them, and a file that takes the
	// volume's place gets them.
	if err := p.Grow("v", 2*mib); err != nil {
		t.Fatal(err)
	}
	f, err := unnamed(p.volumes, "v")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := p.replaceVolume("v", f); err != nil {
		t.Fatal(err)
	}
	p = openPool(t, p.o.StateDir, nil)
	want(full)
	if _, err := p.Limits("w"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a volume that does not exist: %v", err)
	}
	if err := p.SetLimits("w", full); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a volume that does not exist: %v", err)
	}
}
