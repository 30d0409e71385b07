//go:build soak && linux

package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	duration = flag.Duration("soak", time.Minute, "how long to go on")
	workers  = flag.Int("workers", 64, "volumes at a time")
	seed     = flag.Uint64("seed", 0, "of what is chosen at random; 0 for one made of the clock")
)

func TestSoak(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", *seed)
	n := newNode(t)
	// A first life has everything there that stays.
	if err := live(n, rand.New(rand.NewPCG(*seed, 0)), "warm-up", plainFile); err != nil {
		t.Fatal(err)
	}
	before, err := n.footprint()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), *duration)
	defer cancel()
	var lives atomic.Int64
	var wg sync.WaitGroup
	for w := range *workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(*seed, uint64(w)+1))
			for i := 0; ctx.Err() == nil; i++ {
				if err := live(n, r, fmt.Sprintf("s%d-%d", w, i), kinds[r.IntN(len(kinds))]); err != nil {
					t.Error(err)
					cancel()
					return
				}
				lives.Add(1)
			}
		})
	}
	kills := n.faults(ctx, t)
	wg.Wait()
	t.Logf("%d volumes lived; killed were %v", lives.Load(), kills)
	if !t.Failed() && lives.Load() < int64(*workers) {
		t.Errorf("only %d volumes lived in %v", lives.Load(), *duration)
	}
	n.nothingLeft(t, before)
}

// A kind of volume, and how often it is chosen.
type kind struct {
	fsType, pool string
	inline       bool
	bytes        int64
}

const mib = 1 << 20

var (
	plainFile = kind{"ext4", "default", false, 32 * mib}
	kinds     = []kind{
		plainFile, plainFile,
		{"", "default", false, 32 * mib}, {"", "default", false, 32 * mib},
		{"xfs", "default", false, 320 * mib},
		{"ext4", "default", true, 32 * mib}, {"ext4", "default", true, 32 * mib}, {"ext4", "default", true, 32 * mib},
		{"xfs", "default", true, 320 * mib},
		{"", "slow", false, 32 * mib},
		{"ext4", "slow", true, 32 * mib},
	}
)

// live is one volume's life: up, written, checked, for persistent ones down and up
// again and checked again, down and gone.
func live(n *node, r *rand.Rand, id string, k kind) (err error) {
	v := &volume{n: n, id: id, pool: k.pool, fsType: k.fsType, inline: k.inline, bytes: k.bytes, pod: n.path("pods/" + id), rand: r}
	if v.inline {
		v.id = "csi-" + strings.Repeat("0", 64-len(id)) + id // as long as kubelet's
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%v: %w", v, err)
		}
	}()
	const blocks = 1024
	s := newShadow(id, blocks)
	if err := v.create(); err != nil {
		return err
	}
	rounds := 1
	if !v.inline {
		rounds += r.IntN(3)
	}
	for round := range rounds {
		if err := v.up(); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if err := use(v, s, blocks*blockBytes); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if err := v.down(); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return v.remove()
}

// use checks what the round before left, writes, and checks again.
func use(v *volume, s *shadow, size int64) (err error) {
	f, err := s.open(v, size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := s.check(f, v.rand); err != nil {
		return fmt.Errorf("before any write: %w", err)
	}
	for range 1 + v.rand.IntN(3) {
		if err := s.write(f, v.rand); err != nil {
			return err
		}
	}
	return s.check(f, v.rand)
}
