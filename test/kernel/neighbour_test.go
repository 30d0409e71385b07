//go:build ublk && linux

package kernel

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// The nodes of a kind cluster are containers: their servers have state of their own,
// and one kernel, one /dev and one range of device numbers between them.

// newNeighbours makes two nodes on one kernel, with volumes of the same names.
func newNeighbours(t *testing.T, flags ...string) (a, b *node) {
	t.Helper()
	pool := func(pool string) { mount(t, makeFS(t, "xfs", loopDevice(t, 1<<30)), pool, "xfs") }
	// The first one ends last, and must then find an empty kernel.
	a = makeNode(t, pool)
	a.flags = append([]string{"--http-address", httpAddress}, flags...)
	a.begin()
	b = makeNode(t, pool)
	b.flags, b.neighbour = append([]string{"--http-address", ""}, flags...), true
	b.begin()
	return a, b
}

// A churn makes, fills, checks and removes volumes of one node until it is ended.
type churn struct {
	node   *node
	ctx    context.Context
	end    context.CancelFunc
	wait   sync.WaitGroup
	cycles atomic.Int64
}

func startChurn(n *node) *churn {
	c := &churn{node: n}
	c.ctx, c.end = context.WithCancel(context.Background())
	n.t.Cleanup(c.end)
	for g := range 4 {
		c.wait.Go(func() {
			for c.ctx.Err() == nil {
				if err := c.cycle(fmt.Sprintf("churn%d", g)); err != nil {
					n.t.Errorf("churn on %s: %v", n.state, err)
					return
				}
				c.cycles.Add(1)
			}
		})
	}
	return c
}

// cycle takes a volume up and down twice; what the first life wrote the second reads.
func (c *churn) cycle(id string) error {
	n := c.node
	const bytesTotal = 4 << 20
	if err := os.WriteFile(n.file(id), nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(n.file(id), bytesTotal); err != nil {
		return err
	}
	mine := aligned(64 << 10)
	copy(mine, bytes.Repeat([]byte(n.state+id), len(mine)/len(n.state+id)))
	for _, life := range []string{"first", "second"} {
		// While the server is away calls fail; nothing else may make them.
		d, err := retried(func(ctx context.Context) (client.Device, error) {
			return n.client.Attach(ctx, id, client.AttachOptions{Path: n.file(id)})
		})
		if err != nil {
			return fmt.Errorf("attach %s, %s life: %w", id, life, err)
		}
		if err := writeOrCompare(d.Path, mine, life == "first"); err != nil {
			return fmt.Errorf("%s on %s, %s life: %w", id, d.Path, life, err)
		}
		if _, err := retried(func(ctx context.Context) (struct{}, error) { return struct{}{}, n.client.Detach(ctx, id) }); err != nil {
			return fmt.Errorf("detach %s, %s life: %w", id, life, err)
		}
	}
	return nil
}

// stop ends the churn in good order and answers how many cycles there were.
func (c *churn) stop() int64 {
	c.end()
	c.wait.Wait()
	return c.cycles.Load()
}

// advances waits for more cycles.
func (c *churn) advances(when string) {
	c.node.t.Helper()
	before := c.cycles.Load()
	c.node.eventually("the churn to go on "+when, func() error {
		if c.node.t.Failed() {
			c.node.t.FailNow()
		}
		if c.cycles.Load() < before+8 {
			return fmt.Errorf("%d cycles since", c.cycles.Load()-before)
		}
		return nil
	})
}

// retried repeats a call for half a minute.
func retried[T any](call func(context.Context) (T, error)) (v T, err error) {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		v, err = call(ctx)
		cancel()
		if err == nil {
			break
		}
	}
	return v, err
}

func writeOrCompare(path string, want []byte, write bool) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if write {
		if _, err := f.WriteAt(want, 1<<20); err != nil {
			return err
		}
		return f.Sync()
	}
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 1<<20); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("it reads %q, written was %q", got[:40], want[:40])
	}
	return nil
}

// keep attaches a volume that stays, and returns a check that it is the same, with
// the same bytes.
func (n *node) keep(id string) (check func(when string)) {
	n.t.Helper()
	d := n.attach(id, 8<<20, client.AttachOptions{})
	f := openDisk(n.t, d.Path)
	want := bytes.Repeat([]byte(n.state), 64<<10/len(n.state)+1)[:64<<10]
	writeDisk(n.t, f, 0, want)
	n.t.Cleanup(func() { f.Close() })
	return func(when string) {
		n.t.Helper()
		n.live(id)
		now, err := n.client.Get(n.ctx(), id)
		if err != nil || now.DeviceID != d.DeviceID {
			n.t.Errorf("%s: %s has device %d (%v), it had %d", when, id, now.DeviceID, err, d.DeviceID)
		}
		if !bytes.Equal(readDisk(n.t, f, 0, len(want)), want) {
			n.t.Errorf("%s: %s of %s reads other bytes", when, id, n.state)
		}
		if when == "at the end" {
			f.Close()
		}
	}
}

func TestTwoServersOnOneKernelKeepTheirHandsOffEachOther(t *testing.T) {
	a, b := newNeighbours(t)
	keptA, keptB := a.keep("kept"), b.keep("kept")
	churnA, churnB := startChurn(a), startChurn(b)
	churnA.advances("beside another")
	churnB.advances("beside another")

	for i := range 3 {
		a.kill()
		churnB.advances(fmt.Sprintf("while the neighbour is killed, time %d", i))
		a.start()
		churnA.advances(fmt.Sprintf("after kill %d", i))
		keptA("after a kill")
		keptB("after the neighbour's kill")
	}
	t.Logf("cycles: %d and %d", churnA.stop(), churnB.cycles.Load())

	// One ends for good, as far as the other can know, which begins anew meanwhile and
	// finds devices in every state.
	a.stop()
	churnB.advances("after the neighbour's end")
	b.kill()
	b.start()
	churnB.advances("after a kill of its own")
	keptB("after a kill of its own")
	list, err := b.client.List(b.ctx())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		// One that the churn is about to attach has nothing yet.
		if d.State != client.Attaching && d.BackingPath != b.file(d.VolumeID) {
			t.Errorf("a server has taken %q for %s (%s), which is the other's", d.BackingPath, d.VolumeID, d.State)
		}
	}
	a.start()
	keptA("at the end")
	t.Logf("cycles: %d", churnB.stop())
	keptB("at the end")
}

func TestServersOfOneKernelShareTheLimit(t *testing.T) {
	const limit = 6
	a, b := newNeighbours(t, "--max-devices", fmt.Sprint(limit))
	used := func(want uint32) {
		t.Helper()
		for _, n := range []*node{a, b} {
			n.eventually(fmt.Sprintf("%d devices to be counted", want), func() error {
				info, err := n.client.Info(n.ctx())
				if err == nil && (info.DevicesUsed != want || info.DevicesMax != limit) {
					err = fmt.Errorf("%d of %d are", info.DevicesUsed, info.DevicesMax)
				}
				return err
			})
		}
	}
	// The kernel frees a device's number a moment after the device has left sysfs.
	inTime := func(n *node, volume string) {
		t.Helper()
		if err := os.WriteFile(n.file(volume), make([]byte, 4<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		n.eventually("a number for "+volume, func() error {
			_, err := n.client.Attach(n.ctx(), volume, client.AttachOptions{Path: n.file(volume)})
			return err
		})
	}
	used(0) // the probes' devices are gone
	for i := range limit - 2 {
		inTime(a, fmt.Sprintf("v%d", i))
	}
	inTime(b, "v0")
	inTime(b, "v1")
	used(limit)
	for _, n := range []*node{a, b} {
		if err := os.WriteFile(n.file("more"), make([]byte, 4<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := n.client.Attach(n.ctx(), "more", client.AttachOptions{Path: n.file("more")})
		wantCode(t, "one more than there is room for", err, codes.ResourceExhausted)
	}
	used(limit) // nothing is left of the tries
	if err := a.client.Detach(a.ctx(), "v0"); err != nil {
		t.Fatal(err)
	}
	used(limit - 1)
	inTime(b, "more")
	used(limit)
}
