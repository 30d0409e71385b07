//go:build ublk && linux

package ublk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// targetsUnderTest are all the ways bytes can lie. What holds for one must hold
// for each.
var targetsUnderTest = map[string]struct {
	fs     string
	direct bool
	ring   RingOptions
}{
	"memory":                         {},
	"xfs, direct":                    {fs: "xfs", direct: true},
	"xfs, buffered":                  {fs: "xfs"},
	"ext4, direct":                   {fs: "ext4", direct: true},
	"tmpfs":                          {fs: "tmpfs"},
	"xfs, direct, two buffers":       {fs: "xfs", direct: true, ring: RingOptions{Buffers: 2}},
	"xfs, direct, a ring of 8":       {fs: "xfs", direct: true, ring: RingOptions{Entries: 8}},
	"memory, one buffer, one worker": {ring: RingOptions{Buffers: 1, Workers: 1}},
}

const testSize = 16 << 20

func eachTarget(t *testing.T, f func(t *testing.T, s *served)) {
	c := control(t)
	for name, u := range targetsUnderTest {
		t.Run(name, func(t *testing.T) {
			var target Target
			p := ramParams(testSize)
			if u.fs == "" {
				target = FromBackend(newRAM(testSize))
			} else {
				ft, _ := fileTarget(t, newFS(t, u.fs).dir, testSize, u.direct)
				target, p = ft, ft.Info().Params()
			}
			f(t, serve(t, c, newTestRing(t, u.ring), DeviceOptions{ID: -1}, p, target))
		})
	}
}

// Random operations of all kinds, compared with a copy in memory; four writers,
// each with a part of the disk of its own.
func TestWhatWasWrittenIsRead(t *testing.T) {
	eachTarget(t, func(t *testing.T, s *served) {
		f := s.disk(t)
		const writers = 4
		var all sync.WaitGroup
		for w := range writers {
			d := &differ{
				t: t, f: f, base: int64(w) * testSize / writers, rnd: rand.New(rand.NewPCG(1, uint64(w))),
				want: make([]byte, testSize/writers), buf: aligned(t, 1<<20),
				zeroes: testParams(t, s).MaxWriteZeroesSectors > 0, discards: testParams(t, s).MaxDiscardSectors > 0,
			}
			all.Go(func() {
				for range 60 {
					if err := d.step(); err != nil {
						t.Error(err)
						return
					}
				}
				if err := d.check(0, int64(len(d.want))); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		c := s.counters
		if c.ReadErrors.Load()+c.WriteErrors.Load()+c.FlushErrors.Load()+c.DiscardErrors.Load()+c.WriteZeroesErrors.Load() != 0 {
			t.Errorf("errors were counted")
		}
		if c.Writes.Load() == 0 || c.FUAWrites.Load() == 0 || c.Flushes.Load() == 0 || c.ReadBytes.Load() < testSize {
			t.Errorf("%d writes, %d durable, %d flushes, %d bytes read", c.Writes.Load(), c.FUAWrites.Load(), c.Flushes.Load(), c.ReadBytes.Load())
		}
	})
}

func testParams(t testing.TB, s *served) Params {
	t.Helper()
	p, err := s.c.Params(ctxFor(t), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

type differ struct {
	t                *testing.T
	f                *os.File
	base             int64
	rnd              *rand.Rand
	want, buf        []byte
	zeroes, discards bool
}

func (d *differ) step() error {
	n := int64(1+d.rnd.IntN(len(d.buf)/4096)) * 4096
	if d.rnd.IntN(2) == 0 {
		n = 4096
	}
	off := d.rnd.Int64N((int64(len(d.want))-n)/4096+1) * 4096
	switch op := d.rnd.IntN(16); {
	case op < 6:
		return d.check(off, n)
	case op == 6:
		return d.f.Sync()
	case op == 7 && d.discards:
		clear(d.want[off : off+n])
		return discard(d.f, d.base+off, n)
	case op == 8 && d.zeroes:
		clear(d.want[off : off+n])
		return zero(d.f, d.base+off, n, d.rnd.IntN(2) == 0)
	default:
		b := d.buf[:n]
		stamp(b, d.rnd.Uint64())
		copy(d.want[off:], b)
		if op == 9 {
			return writeDurably(d.f, b, d.base+off)
		}
		_, err := d.f.WriteAt(b, d.base+off)
		return err
	}
}

func stamp(b []byte, x uint64) {
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
}

func (d *differ) check(off, n int64) error {
	for n > 0 {
		b := d.buf[:min(n, int64(len(d.buf)))]
		if _, err := d.f.ReadAt(b, d.base+off); err != nil {
			return err
		}
		if want := d.want[off:][:len(b)]; !bytes.Equal(b, want) {
			i := 0
			for b[i] == want[i] {
				i++
			}
			return fmt.Errorf("byte %d is %#x, want %#x", d.base+off+int64(i), b[i], want[i])
		}
		off, n = off+int64(len(b)), n-int64(len(b))
	}
	return nil
}

func TestDiscardAndZeroesReadAsZero(t *testing.T) {
	eachTarget(t, func(t *testing.T, s *served) {
		f := s.disk(t)
		p := testParams(t, s)
		b := aligned(t, 1<<20)
		for name, op := range map[string]func(off, n int64) error{
			"discard":                     func(off, n int64) error { return discard(f, off, n) },
			"zeroes that may free space":  func(off, n int64) error { return zero(f, off, n, false) },
			"zeroes that keep it":         func(off, n int64) error { return zero(f, off, n, true) },
			"zeroes, part of a large one": func(off, n int64) error { return zero(f, off+4096, n-8192, true) },
		} {
			stamp(b, 7)
			if _, err := f.WriteAt(b, 1<<20); err != nil {
				t.Fatal(err)
			}
			err := op(1<<20, 1<<20)
			if name == "zeroes that may free space" && p.MaxWriteZeroesSectors == 0 {
				if !errors.Is(err, unix.EOPNOTSUPP) {
					t.Errorf("%s, where not advertised: %v", name, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if _, err := f.ReadAt(b, 1<<20); err != nil {
				t.Fatal(err)
			}
			want := make([]byte, len(b))
			if name == "zeroes, part of a large one" {
				stamp(want, 7)
				clear(want[4096 : len(want)-4096])
			}
			if !bytes.Equal(b, want) {
				t.Errorf("%s: other bytes than zero", name)
			}
		}
		if p.MaxDiscardSectors == 0 {
			t.Error("no discard was offered")
		}
	})
}

func TestDiscardFreesSpaceAndKeptZeroesDoNot(t *testing.T) {
	c := control(t)
	target, file := fileTarget(t, newFS(t, "xfs").dir, testSize, true)
	s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, target.Info().Params(), target)
	f := s.disk(t)
	used := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	if n := used(); n > 1<<20 {
		t.Fatalf("a fresh volume takes %d bytes", n)
	}
	b := aligned(t, 8<<20)
	stamp(b, 3)
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if n := used(); n < 8<<20 {
		t.Fatalf("8 MiB take %d bytes", n)
	}
	if err := zero(f, 0, 8<<20, true); err != nil {
		t.Fatal(err)
	}
	if n := used(); n < 8<<20 {
		t.Errorf("zeroes that keep space leave %d bytes", n)
	}
	if err := discard(f, 0, 8<<20); err != nil {
		t.Fatal(err)
	}
	if n := used(); n > 1<<20 {
		t.Errorf("after the discard %d bytes are left", n)
	}
}
