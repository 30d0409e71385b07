//go:build ublk && linux

package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

const blockBytes = 4096

// A sequence is a writer of rising numbers, to volume a and then to volume b: n goes to b
// only when n in a is acknowledged, and n+1 to a only when n in b is. Each number has a
// block of its own, until the ring of blocks comes round.
type sequence struct {
	n    atomic.Uint64
	stop atomic.Bool
	all  sync.WaitGroup
}

const sequenceBlocks = 64

func startSequence(t *testing.T, a, b *os.File) *sequence {
	s := &sequence{}
	buf := block(0)
	s.all.Go(func() {
		for n := uint64(1); !s.stop.Load(); n++ {
			binary.LittleEndian.PutUint64(buf, n)
			for _, f := range []*os.File{a, b} {
				if _, err := f.WriteAt(buf, int64(n%sequenceBlocks)*blockBytes); err != nil {
					t.Error(err)
					return
				}
			}
			s.n.Store(n)
		}
	})
	// Others write to both all the time, so that there is something in flight.
	for i := range 4 {
		f, noise := []*os.File{a, b}[i%2], block(0)
		s.all.Go(func() {
			for k := 0; !s.stop.Load(); k++ {
				if _, err := f.WriteAt(noise, int64(4+i)<<20+int64(k%16)*int64(len(noise))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return s
}

func (s *sequence) end() {
	s.stop.Store(true)
	s.all.Wait()
}

// lastIn is the last number in a copy. All that came before it must be there, too.
func lastIn(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	b := make([]byte, sequenceBlocks*blockBytes)
	if _, err := f.ReadAt(b, 0); err != nil {
		return 0, err
	}
	at := func(n uint64) uint64 { return binary.LittleEndian.Uint64(b[n%sequenceBlocks*blockBytes:]) }
	last := uint64(0)
	for i := range uint64(sequenceBlocks) {
		last = max(last, at(i))
	}
	for n := last; n > 0 && n+sequenceBlocks > last; n-- {
		if at(n) != n {
			return 0, fmt.Errorf("%s has %d, but %d in the block of %d", path, last, at(n), n)
		}
	}
	return last, nil
}

// cutVolumes are two volumes in a pool with reflink.
type cutVolumes struct {
	t     *testing.T
	s     *Server
	pool  string
	disks [2]*os.File
}

var cutNames = [2]string{"a", "b"}

func newCutVolumes(t *testing.T, change func(*Server)) *cutVolumes {
	t.Helper()
	disk := newSlowDisk(t, 400<<20)
	command(t, "mkfs.xfs", "-q", "-K", disk.path)
	v := &cutVolumes{t: t, s: startServer(t, change)}
	v.pool = filepath.Join(v.s.poolsDir, "p")
	if err := unix.Mount(disk.path, v.pool, "xfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmountPool(t, v.pool) })
	for i, id := range cutNames {
		path := filepath.Join(v.pool, id)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, volumeBytes); err != nil {
			t.Fatal(err)
		}
		d, err := v.s.attach(t.Context(), attachSpec{volume: id, path: path, queues: 1, depth: 16})
		if err != nil {
			t.Fatal(err)
		}
		if v.disks[i], err = os.OpenFile(d.Path, os.O_RDWR|unix.O_DIRECT, 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for i, id := range cutNames {
			v.disks[i].Close()
			if err := v.s.detach(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
		waitFor(t, "the devices to go", func() bool { return v.s.table.releasingCount() == 0 })
	})
	return v
}

// cut makes the copies and returns the last numbers in them. After an error the targets
// must be empty.
func (v *cutVolumes) cut() (held time.Duration, last [2]uint64, err error) {
	v.t.Helper()
	var list []*cutCopy
	for _, id := range cutNames {
		target := filepath.Join(v.pool, "copy-of-"+id)
		if err := os.WriteFile(target, nil, 0o600); err != nil {
			v.t.Fatal(err)
		}
		defer os.Remove(target)
		list = append(list, &cutCopy{id: id, target: target})
	}
	held, err = v.s.cut(v.t.Context(), list)
	for i, c := range list {
		st, statErr := os.Stat(c.target)
		switch {
		case statErr != nil:
			v.t.Error(statErr)
		case err != nil && st.Size() != 0:
			v.t.Errorf("after %v a target has %d bytes", err, st.Size())
		case err == nil && st.Size() != volumeBytes:
			v.t.Errorf("a copy has %d bytes", st.Size())
		case err == nil:
			var damage error
			if last[i], damage = lastIn(c.target); damage != nil {
				v.t.Error(damage)
			}
		}
	}
	return held, last, err
}

// ofOneMoment: with n in b, n is in a, and n+1 may be.
func ofOneMoment(last [2]uint64) bool { return last[0] == last[1] || last[0] == last[1]+1 }

func TestACutIsOfOneMoment(t *testing.T) {
	slow := func(c *cutCopy) error {
		if c.id == "b" {
			time.Sleep(30 * time.Millisecond)
		}
		return c.clone()
	}
	for name, c := range map[string]struct {
		cuts   int
		change func(*cutSteps)
		good   bool
	}{
		"as it is":                       {100, func(*cutSteps) {}, true},
		"one clone later than the other": {20, func(s *cutSteps) { s.clone = slow }, true},
		"without the hold it would be none": {20, func(s *cutSteps) {
			s.clone = slow
			s.hold = func(context.Context, *cutCopy) error { return nil }
			s.resume = s.hold
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := newCutVolumes(t, func(s *Server) { c.change(&s.cutSteps) })
			s := startSequence(t, v.disks[0], v.disks[1])
			defer s.end()
			bad := 0
			var held []time.Duration
			for i := range c.cuts {
				before := s.n.Load()
				d, last, err := v.cut()
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, d)
				if last[1] < before {
					t.Errorf("cut %d lacks what was acknowledged before it: %d in b of %d", i, last[1], before)
				}
				if !ofOneMoment(last) {
					bad++
					if c.good {
						t.Errorf("cut %d has %d in a and %d in b", i, last[0], last[1])
					}
				}
				waitFor(t, "the writer to go on", func() bool { return s.n.Load() > before })
			}
			slices.Sort(held)
			t.Logf("%d cuts of two volumes under load: held %v to %v, half of them below %v; %d numbers written, %d cuts wrong",
				len(held), held[0], held[len(held)-1], held[len(held)/2], s.n.Load(), bad)
			if !c.good && bad == 0 {
				t.Error("nothing is wrong without a hold: the test shows nothing")
			}
		})
	}
}

// Whenever the worker dies, the cut is as promised or there is none, and nothing stays held.
func TestAWorkerThatDiesDuringACutHoldsNothing(t *testing.T) {
	v := newCutVolumes(t, func(*Server) {})
	s := startSequence(t, v.disks[0], v.disks[1])
	defer s.end()
	live := func() bool {
		for _, d := range v.s.table.list() {
			if d.State != serverv1.Device_LIVE {
				return false
			}
		}
		return true
	}
	const cuts = 12
	failed := 0
	for range cuts {
		waitFor(t, "the volumes to be live", live)
		time.Sleep(time.Second) // or the server waits before it starts the next worker
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			time.Sleep(rand.N(12 * time.Millisecond))
			kill(t, v.s, "a")
		}()
		_, last, err := v.cut()
		<-killed
		switch {
		case err == nil && !ofOneMoment(last):
			t.Errorf("%d in a and %d in b", last[0], last[1])
		case err != nil:
			failed++
			if !errors.Is(err, errUnavailable) {
				t.Errorf("cut whose worker dies: %v", err)
			}
		}
		before := s.n.Load()
		waitFor(t, "the writer to go on", func() bool { return s.n.Load() > before+1 })
	}
	t.Logf("%d of %d cuts failed", failed, cuts)
	if failed == 0 {
		t.Error("no cut met the death of its worker: the test shows nothing")
	}
	waitFor(t, "the volumes to be live", live)
	if _, last, err := v.cut(); err != nil || !ofOneMoment(last) {
		t.Errorf("after all that: %v, %v", last, err)
	}
}
