package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

// newPool opens a path pool that lies in its place already, which needs no mount
// and so no privilege.
func newPool(t *testing.T, change func(*Options)) *Pool {
	t.Helper()
	state := t.TempDir()
	return openPool(t, state, change)
}

func openPool(t *testing.T, state string, change func(*Options)) *Pool {
	t.Helper()
	o := Options{Name: "default", Kind: KindPath, StateDir: state, Path: filepath.Join(state, "pools", "default"), SizeBytes: 64 * mib}
	if err := os.MkdirAll(o.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&o)
	}
	p, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func usage(t *testing.T, p *Pool) Usage {
	t.Helper()
	u, err := p.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func reclaimAll(t *testing.T, p *Pool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Reclaim(ctx, func(err error) { t.Error(err) })
	}()
	deadline := time.Now().Add(10 * time.Second)
	for {
		entries, err := os.ReadDir(p.trash.Name())
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 && usage(t, p).ReclaimingBytes == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("trash not empty after 10 s: %v, %+v", entries, usage(t, p))
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
}

func TestCreate(t *testing.T) {
	p := newPool(t, nil)
	if err := p.Create("v", 10*mib); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(p.VolumePath("v"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() != 10*mib || info.Mode().Perm() != 0o600 {
		t.Errorf("file is %d bytes, mode %v", info.Size(), info.Mode())
	}
	if n, err := p.AllocatedBytes("v"); err != nil || n != 0 {
		t.Errorf("AllocatedBytes = %d, %v; a new volume is all holes", n, err)
	}
	if err := p.Create("v", 10*mib); err != nil {
		t.Errorf("repeated with the same size: %v", err)
	}
	var size *SizeError
	if err := p.Create("v", 11*mib); !errors.As(err, &size) || !errors.Is(err, fs.ErrExist) {
		t.Errorf("repeated with another size: %v", err)
	}
	if got := usage(t, p).PromisedBytes; got != 10*mib {
		t.Errorf("promised %d", got)
	}
}

func TestNothingIsPromisedTwice(t *testing.T) {
	p := newPool(t, nil)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() { errs[i] = p.Create(fmt.Sprintf("v%d", i), 10*mib) })
	}
	wg.Wait()
	made := 0
	for _, err := range errs {
		var full *FullError
		switch {
		case err == nil:
			made++
		case !errors.Is(err, syscall.ENOSPC) || !errors.As(err, &full):
			t.Errorf("unexpected error: %v", err)
		}
	}
	if made != 6 {
		t.Errorf("%d volumes of 10 MiB fit into 64 MiB", made)
	}
	if err := p.Create("small", 4*mib); err != nil {
		t.Errorf("a smaller one that fits: %v", err)
	}
}

func TestTrashCountsUntilItIsFree(t *testing.T) {
	p := newPool(t, nil)
	if err := p.Create("v", 40*mib); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.VolumePath("v"), make([]byte, 30*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete("v"); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete("v"); err != nil {
		t.Errorf("deleting again: %v", err)
	}
	u := usage(t, p)
	if u.PromisedBytes != 0 || u.ReclaimingBytes < 30*mib {
		t.Errorf("after delete: %+v", u)
	}
	if err := p.Create("w", 40*mib); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("create while the trash holds the space: %v", err)
	}
	reclaimAll(t, p)
	if err := p.Create("w", 40*mib); err != nil {
		t.Errorf("create when the space is free: %v", err)
	}
}

func TestSameIDManyTimesInTheTrash(t *testing.T) {
	p := newPool(t, nil)
	for range 3 {
		if err := p.Create("v", mib); err != nil {
			t.Fatal(err)
		}
		if err := p.Delete("v"); err != nil {
			t.Fatal(err)
		}
	}
	reclaimAll(t, p)
}

func TestOpenFindsWhatIsThere(t *testing.T) {
	state := t.TempDir()
	p := openPool(t, state, nil)
	for _, id := range []string{"kept", "gone"} {
		if err := p.Create(id, 10*mib); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.VolumePath(id), make([]byte, mib), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(p.VolumePath("kept"), 10*mib); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete("gone"); err != nil {
		t.Fatal(err)
	}
	p = openPool(t, state, nil)
	u := usage(t, p)
	if u.PromisedBytes != 10*mib || u.ReclaimingBytes < mib {
		t.Errorf("a second Open sees %+v", u)
	}
	reclaimAll(t, p)
}

func TestReclaimIsPacedAndGoesOnWhereItStopped(t *testing.T) {
	state := t.TempDir()
	p := openPool(t, state, func(o *Options) {
		o.SizeBytes = 400 * mib
		o.ReclaimBytesPerSecond = 64 * mib
	})
	if err := p.Create("v", 320*mib); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(p.VolumePath("v"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, 320*mib); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete("v"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	p.Reclaim(ctx, func(err error) { t.Error(err) })
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("stopping took %v", took)
	}
	// One burst of 64 MiB is free at once, the second step is being waited for.
	if left := usage(t, p).ReclaimingBytes; left < 150*mib || left > 300*mib {
		t.Errorf("%d MiB left after half a second at 64 MiB/s", left/mib)
	}
	p = openPool(t, state, nil)
	reclaimAll(t, p)
}

func TestLostFileStopsToCount(t *testing.T) {
	p := newPool(t, nil)
	if err := p.Create("v", 10*mib); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(p.VolumePath("v")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Size("v"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Size of a lost file: %v", err)
	}
	if got := usage(t, p).PromisedBytes; got != 0 {
		t.Errorf("promised %d", got)
	}
}

func TestOptions(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		says string
	}{
		"no name":                       {Options{Kind: KindImage, SizeBytes: 1 << 30}, "name must match"},
		"unknown kind":                  {Options{Name: "a", Kind: "zfs"}, `kind "zfs"`},
		"relative path":                 {Options{Name: "a", Kind: KindPath, Path: "x"}, "absolute path of a directory"},
		"image too small":               {Options{Name: "a", Kind: KindImage, SizeBytes: 300 * mib}, "at least 512Mi"},
		"size of a device":              {Options{Name: "a", Kind: KindDevice, Device: "/dev/x", SizeBytes: 1 << 30}, "takes the whole device"},
		"file system that has no clone": {Options{Name: "a", Kind: KindImage, SizeBytes: 1 << 30, FSType: "ext4"}, `fsType "ext4"`},
		"path of an image":              {Options{Name: "a", Kind: KindImage, SizeBytes: 1 << 30, Path: "/x"}, "kind path only"},
		"reserve all of it":             {Options{Name: "a", Kind: KindImage, SizeBytes: 1 << 30, ReservePercent: 100}, "reserve"},
		"overcommit of less than 1":     {Options{Name: "a", Kind: KindImage, SizeBytes: 1 << 30, Overcommit: 0.5}, "overcommit 0.5"},
		"overcommit that is no number":  {Options{Name: "a", Kind: KindImage, SizeBytes: 1 << 30, Overcommit: math.NaN()}, "overcommit NaN"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(context.Background(), c.o)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want it to say %q", err, c.says)
			}
		})
	}
}

func TestIDsThatAreNoPathElements(t *testing.T) {
	p := newPool(t, nil)
	for _, id := range []string{"", ".", "..", "a..b", "a/b", "/etc", "A", "-a", strings.Repeat("a", 64), "a\x00b"} {
		for op, err := range map[string]error{"create": p.Create(id, mib), "delete": p.Delete(id)} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s %q: %v", op, id, err)
			}
		}
	}
}

func TestSet(t *testing.T) {
	state := t.TempDir()
	good := Options{Name: "good", Kind: KindPath, StateDir: state, Path: filepath.Join(state, "pools", "good")}
	late := Options{Name: "late", Kind: KindPath, StateDir: state, Path: filepath.Join(state, "pools", "late")}
	if err := errors.Join(os.MkdirAll(good.Path, 0o700), os.WriteFile(late.Path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s, err := NewSet([]Options{good, late})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(context.Background()); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("open with a file in the place of a directory: %v", err)
	}
	if _, err := s.Pool("good"); err != nil {
		t.Errorf("the other pool: %v", err)
	}
	if _, err := s.Pool("late"); !errors.Is(err, ErrNotReady) {
		t.Errorf("the one that can't be opened: %v", err)
	}
	if _, err := s.Pool("other"); !errors.Is(err, ErrNotConfigured) {
		t.Errorf("an unknown one: %v", err)
	}
	if _, err := NewSet([]Options{good, good}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("the same name twice: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	reports := make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx, 20*time.Millisecond, func(err error) { reports <- err }) })
	if err := <-reports; !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("reported of the file: %v", err)
	}
	if err := os.Remove(late.Path); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := s.Pool("late"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("nothing is in the way any more: %v", err)
		}
		select {
		case <-reports:
		default:
		}
	}
	cancel()
	running.Wait()
}

// A pool whose disk does not answer while it is opened.
func TestAPoolThatHangsKeepsNoOther(t *testing.T) {
	state := t.TempDir()
	good := Options{Name: "good", Kind: KindPath, StateDir: state, Path: filepath.Join(state, "pools", "good")}
	hangs := Options{Name: "hangs", Kind: KindPath, StateDir: state, Path: filepath.Join(state, "pools", "hangs")}
	for _, dir := range []string{good.Path, hangs.Path} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s, err := NewSet([]Options{hangs, good})
	if err != nil {
		t.Fatal(err)
	}
	s.opening["hangs"].Lock() // as by an open that does not return
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx, time.Hour, func(err error) { t.Error(err) }) })
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := s.Pool("good"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the other pool: %v", err)
		}
	}
	if _, err := s.Pool("hangs"); !errors.Is(err, ErrNotReady) {
		t.Errorf("the pool that hangs: %v", err)
	}
	s.opening["hangs"].Unlock()
	cancel()
	running.Wait()
}

// A file that goes away while a directory is gone through hides no other.
func TestFilesThatGoAwayAreLeftOut(t *testing.T) {
	p := newPool(t, nil)
	for i := range 8 {
		if err := p.Create(fmt.Sprintf("v%d", i), mib); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[string]bool)
	err := eachFile(p.volumes, func(name string, _ unix.Stat_t) {
		seen[name] = true
		if len(seen) > 1 {
			return
		}
		for i := range 4 { // some that are still to come
			if gone := fmt.Sprintf("v%d", i); gone != name {
				if err := p.Delete(gone); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	for i := 4; i < 8; i++ {
		if name := fmt.Sprintf("v%d", i); !seen[name] {
			t.Errorf("%s was not seen", name)
		}
	}
}

// Whoever looks for a volume that is being made must not take back what is promised for it.
func TestALookAtAVolumeThatIsBeingMadeTakesNothingBack(t *testing.T) {
	p := newPool(t, nil)
	if err := p.reserve("v", 40*mib); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Size("v"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("size of a volume without a file: %v", err)
	}
	if got := usage(t, p).PromisedBytes; got != 40*mib {
		t.Errorf("promised %d bytes, want %d", got, 40*mib)
	}
	if err := p.createFile("v", 40*mib, nil); err != nil {
		t.Fatal(err)
	}
	p.endMaking("v")
	if err := os.Remove(p.VolumePath("v")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Size("v"); !errors.Is(err, fs.ErrNotExist) || usage(t, p).PromisedBytes != 0 {
		t.Errorf("a volume whose file is gone still counts (%v)", err)
	}
}
