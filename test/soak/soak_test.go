//go:build soak && linux

package soak

import (
	"context"
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
	workers  = flag.Int("workers", enough(64, 8), "volumes at a time; fewer in an emulated machine")
	seed     = flag.Uint64("seed", 0, "of what is chosen at random; 0 for one made of the clock")
)

func TestSoak(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", *seed)
	n := newNode(t)
	// First lives, one of each kind, have everything there that stays.
	r := rand.New(rand.NewPCG(*seed, 0))
	for i, k := range kinds {
		if err := live(n, r, fmt.Sprintf("warm-up-%d", i), k); err != nil {
			t.Fatal(err)
		}
	}
	n.noVolumes(t)
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
	for _, d := range []*disk{n.slow, n.failing} {
		wg.Go(func() { n.spells(ctx, t, d) })
	}
	kills := n.faults(ctx, t)
	wg.Wait()
	t.Logf("%d volumes lived, %d were cut and their copies lived, %d disks were held; killed were %v; the slow disk had %d spells, the failing one %d, with %d errors",
		lives.Load(), n.cuts.Load(), n.holds.Load(), kills, n.slow.spells.Load()/2, n.failing.spells.Load()/2, n.errors.Load())
	if !t.Failed() && lives.Load() < int64(*workers) {
		t.Errorf("only %d volumes lived in %v", lives.Load(), *duration)
	}
	if !t.Failed() && (n.cuts.Load() == 0 || n.errors.Load() == 0) {
		t.Errorf("%d cuts, and %d errors of the failing disk: something was not tried", n.cuts.Load(), n.errors.Load())
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

var kinds = []kind{
	{"ext4", "default", false, 32 * mib}, {"ext4", "default", false, 32 * mib},
	{"", "default", false, 32 * mib}, {"", "default", false, 32 * mib},
	{"xfs", "default", false, 320 * mib},
	{"ext4", "default", true, 32 * mib}, {"ext4", "default", true, 32 * mib}, {"ext4", "default", true, 32 * mib},
	{"xfs", "default", true, 320 * mib},
	{"", "slow", false, 32 * mib},
	{"ext4", "slow", true, 32 * mib},
	{"", "failing", false, 32 * mib},
}

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
		use := use
		if k.pool == "failing" {
			use = useFailing
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
