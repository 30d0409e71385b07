package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// The table node: what kubelet waits for when pods with a new volume each start
// and end, by the node plugin's CSI socket and, beside it, with loop devices.

const (
	wayNode = "csi-ublk" // as it is installed: new volumes are clones of a template
	wayMkfs = "csi-ublk, mkfs"
)

// podVolumeBytes is a little more than mkfs.xfs takes; nearly all of it are holes.
const podVolumeBytes = 320 << 20

// leastPods are as many as make a distribution where few are in flight.
const leastPods = 20

// A podWay gives pods a new volume with a file system, and takes it away. Ways
// that differ in how the file system gets there (made by mkfs, or cloned from a
// template) or in who asks (a claim, or the pod itself) are podWays of their own:
// the table has a column for each.
type podWay interface {
	name() string
	// prepare makes n volumes blank, which is not measured.
	prepare(n int) error
	up(ctx context.Context, i int, fsType string) error
	down(ctx context.Context, i int) error
	// settled waits for what goes on behind down, which is not measured.
	settled(ctx context.Context) error
}

// templatesKept is enough for one size of each file system.
const templatesKept = 4

type nodePoint struct {
	way    podWay
	fsType string
	pods   int
}

func (b *bench) nodeRound(ctx context.Context, round int) (err error) {
	s, err := b.startStation(ctx, b.mostPods())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	// Before the plugin opens the pool: it counts the files that it finds.
	if err := s.blanks(b.mostPods(), podVolumeBytes); err != nil {
		return err
	}
	mkfs, err := startPlugin(ctx, s, wayMkfs, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mkfs.close(ctx)) }()
	plugin, err := startPlugin(ctx, s, wayNode, templatesKept)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plugin.close(ctx)) }()
	loops, err := newLoopPods(s, b.mostPods())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loops.close(ctx)) }()

	var points []nodePoint
	for _, k := range b.o.Pods {
		for _, fsType := range b.o.FSTypes {
			for _, way := range []podWay{plugin, inlinePods{plugin}, mkfs, loops} {
				points = append(points, nodePoint{way, fsType, k})
			}
		}
	}
	for _, p := range turns(points, round) {
		b.say("node: %s, %s, %d in flight", p.way.name(), p.fsType, p.pods)
		if err := b.pods(ctx, p); err != nil {
			return fmt.Errorf("%s, %s, %d in flight: %w", p.way.name(), p.fsType, p.pods, err)
		}
	}
	return nil
}

func (b *bench) mostPods() int {
	most := leastPods
	for _, n := range b.o.Pods {
		most = max(most, n)
	}
	return most
}

func (b *bench) pods(ctx context.Context, p nodePoint) error {
	n := max(p.pods, leastPods)
	if err := p.way.prepare(n); err != nil {
		return err
	}
	w := &stopwatch{}
	wave := func(part string, f func(ctx context.Context, i int) error) error {
		begin := time.Now()
		err := each(ctx, p.pods, n, func(ctx context.Context, i int) error {
			return w.timed(p.fsType+" "+part, func() error { return f(ctx, i) })
		})
		if err != nil {
			return err
		}
		b.report.add(Key{Table: TableNode, Part: p.fsType + " " + part + ", pods", Unit: "/s", Way: p.way.name(), Load: p.pods},
			float64(n)/time.Since(begin).Seconds())
		return nil
	}
	if err := wave("up", func(ctx context.Context, i int) error { return p.way.up(ctx, i, p.fsType) }); err != nil {
		return err
	}
	if err := wave("down", p.way.down); err != nil {
		return err
	}
	w.report(b.report, Key{Table: TableNode, Way: p.way.name(), Load: p.pods})
	return p.way.settled(ctx)
}

// podPaths are where a pod's volume is mounted, below the station's directory.
func podPaths(dir string, i int) (staging, target string, err error) {
	pod := filepath.Join(dir, volumeID("pod", i))
	if err := os.MkdirAll(pod, 0o750); err != nil {
		return "", "", fmt.Errorf("make pod directory: %w", err)
	}
	return filepath.Join(pod, "staging"), filepath.Join(pod, "target"), nil
}
