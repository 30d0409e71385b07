package pool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

func TestGrow(t *testing.T) {
	p := newPool(t, nil)
	if err := p.Create("v", mib); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("data"), mib/4)
	if err := os.WriteFile(p.VolumePath("v"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Grow("v", 40*mib); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(p.VolumePath("v"))
		if err != nil || len(got) != 40*mib || !bytes.Equal(got[:mib], data) || bytes.ContainsFunc(got[mib:], func(r rune) bool { return r != 0 }) {
			t.Errorf("%d bytes, %v; want the data and zeros behind it", len(got), err)
		}
		if u := usage(t, p); u.PromisedBytes != 40*mib || u.AvailableBytes() != 24*mib {
			t.Errorf("usage %+v", u)
		}
	}
	var differs *SizeError
	if err := p.Grow("v", 39*mib); !errors.As(err, &differs) || differs.HasBytes != 40*mib {
		t.Errorf("to less: %v", err)
	}
	var full *FullError
	if err := p.Grow("v", 65*mib); !errors.As(err, &full) || full.WantedBytes != 25*mib || full.AvailableBytes != 24*mib || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("to more than there is: %v", err)
	}
	if size, err := p.Size("v"); err != nil || size != 40*mib || usage(t, p).PromisedBytes != 40*mib {
		t.Errorf("a growth that was refused leaves %d bytes (%v), promised %d", size, err, usage(t, p).PromisedBytes)
	}
	if err := p.Grow("w", mib); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a volume that does not exist: %v", err)
	}
	if err := p.Delete("v"); err != nil || usage(t, p).PromisedBytes != 0 {
		t.Errorf("promised after the end: %d, %v", usage(t, p).PromisedBytes, err)
	}
}

// While volumes grow and are looked at, their sum is never more than the pool.
func TestGrowthIsNotPromisedTwice(t *testing.T) {
	p := newPool(t, nil)
	const n = 16
	for i := range n {
		if err := p.Create(fmt.Sprintf("v%d", i), mib); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	var grown atomic.Int64
	for i := range n {
		id := fmt.Sprintf("v%d", i)
		wg.Go(func() {
			err := p.Grow(id, 9*mib)
			if err == nil {
				grown.Add(1)
			} else if !errors.Is(err, syscall.ENOSPC) {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := p.Size(id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if grown.Load() != 6 {
		t.Errorf("%d of 16 have grown by 8 MiB, the 48 MiB that were free make 6", grown.Load())
	}
	// Counted anew from the files.
	var sum int64
	for i := range n {
		size, err := p.Size(fmt.Sprintf("v%d", i))
		if err != nil {
			t.Fatal(err)
		}
		sum += size
	}
	if sum != 64*mib || usage(t, p).PromisedBytes != sum {
		t.Errorf("files of %d bytes, promised %d, in a pool of 64 MiB", sum, usage(t, p).PromisedBytes)
	}
}

// A look that began before a growth, or before the end, counts for nothing after it.
func TestALookThatAGrowthOvertakesIsRepeated(t *testing.T) {
	p := newPool(t, nil)
	if err := p.Create("v", mib); err != nil {
		t.Fatal(err)
	}
	l := p.beginLook("v")
	if err := p.Grow("v", 9*mib); err != nil {
		t.Fatal(err)
	}
	if p.endLook("v", l, func() { p.setSize("v", mib) }) || usage(t, p).PromisedBytes != 9*mib {
		t.Errorf("a size from before the growth counts after it: promised %d", usage(t, p).PromisedBytes)
	}
	l = p.beginLook("v")
	if err := p.Delete("v"); err != nil {
		t.Fatal(err)
	}
	if p.endLook("v", l, func() { p.setSize("v", 9*mib) }) || usage(t, p).PromisedBytes != 0 {
		t.Errorf("a size from before the end counts after it: promised %d", usage(t, p).PromisedBytes)
	}
	if len(p.looks) != 0 {
		t.Errorf("looks are kept: %v", p.looks)
	}
}

// A look at the file before it has its new size does not take back what was promised.
func TestGrowthCountsBeforeTheFileHasIt(t *testing.T) {
	p := newPool(t, nil)
	if err := p.Create("v", mib); err != nil {
		t.Fatal(err)
	}
	if err := p.promiseGrowth("v", 60*mib); err != nil {
		t.Fatal(err)
	}
	if size, err := p.Size("v"); err != nil || size != mib || usage(t, p).AvailableBytes() != 4*mib {
		t.Errorf("size %d (%v), %d available", size, err, usage(t, p).AvailableBytes())
	}
	p.endGrowth("v")
	if got := usage(t, p).AvailableBytes(); got != 63*mib {
		t.Errorf("%d available after a growth that came to nothing", got)
	}
}
