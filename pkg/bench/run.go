package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// The tables, in the order in which they are measured and shown.
const (
	TableKernel    = "kernel"
	TableLifecycle = "lifecycle"
	TableGrowth    = "growth"
	TableIdle      = "idle"
	TableNode      = "node"
)

// Tables are all of them.
var Tables = []string{TableKernel, TableLifecycle, TableGrowth, TableIdle, TableNode}

// Options are a run's. Lists must not be empty where their table is measured.
type Options struct {
	// Tables to measure.
	Tables []string
	// Devices of each wave of the table kernel; Threads are its callers.
	Devices int
	Threads []int
	// Volumes of each wave of the tables lifecycle and growth; InFlight are those
	// of lifecycle.
	Volumes  int
	InFlight []int
	// Others are the idle devices beside, of the table growth; Idle those that
	// the table idle looks at, more than none.
	Others, Idle []int
	// Pods in flight and FSTypes, of the table node.
	Pods    []int
	FSTypes []string
	// Rounds is how often all is measured. FirstRound is the number of the first:
	// it decides with which way the turns begin, where each round is a run.
	Rounds, FirstRound int
	// Dir is where volumes are made, in a directory of their own: a file system
	// with direct I/O and some space.
	Dir string
	// Label names the run; "" makes one of kernel and kind. Machine says what the
	// kernel runs on; "" has a look.
	Label, Machine string
	// Version is reported as it is.
	Version string
	// Command is csi-ublk, for the device server; nil means this binary.
	Command []string
	// Progress gets a line a step; nil means nobody.
	Progress io.Writer
}

// bench is one run.
type bench struct {
	o      Options
	fleet  *fleet
	report *Report
	begin  time.Time
}

// Run measures, which takes from seconds to hours, and needs root. When it
// returns, nothing of what it made is left, or the error says what is; also when
// ctx ends.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if o.Command == nil {
		o.Command = []string{"/proc/self/exe"}
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	// The device server takes absolute paths only.
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	b := &bench{o: o, begin: time.Now()}
	if err := b.require(); err != nil {
		return nil, err
	}
	if b.fleet, err = newFleet(); err != nil {
		return nil, fmt.Errorf("%w; csi-ublk probe says what this machine lacks", err)
	}
	defer func() {
		b.say("removing what was made")
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
		defer cancel()
		if closed := b.fleet.close(clean); closed != nil {
			err = errors.Join(err, fmt.Errorf("remove devices: %w; the next run removes what is left", closed))
		}
	}()
	if err := b.fleet.sweep(ctx); err != nil {
		return nil, err
	}
	if err := b.conditions(ctx); err != nil {
		return nil, err
	}
	for round := range o.Rounds {
		b.say("round %d of %d", round+1, o.Rounds)
		if err := b.round(ctx, o.FirstRound+round); err != nil {
			return nil, err
		}
	}
	return b.report, nil
}

func (b *bench) round(ctx context.Context, round int) error {
	for _, t := range []struct {
		tables  []string
		measure func(context.Context, int) error
	}{
		{[]string{TableKernel}, b.kernelRound},
		{[]string{TableLifecycle}, b.lifecycleRound},
		{[]string{TableGrowth, TableIdle}, b.climb},
		{[]string{TableNode}, b.nodeRound},
	} {
		if !slices.ContainsFunc(t.tables, b.wants) {
			continue
		}
		if err := t.measure(ctx, round); err != nil {
			return fmt.Errorf("table %s: %w", t.tables[0], err)
		}
	}
	return nil
}

func (b *bench) wants(table string) bool { return slices.Contains(b.o.Tables, table) }

// conditions begins the report.
func (b *bench) conditions(ctx context.Context) error {
	if err := b.fleet.tryExact(ctx); err != nil {
		return err
	}
	kind, err := b.probeKind(ctx)
	if err != nil {
		return fmt.Errorf("find out how the kernel deletes devices: %w", err)
	}
	c := Conditions{
		Label: b.o.Label, Kernel: kernelRelease(), CPUs: runtime.NumCPU(), Machine: b.o.Machine, Version: b.o.Version,
		Exact: b.fleet.exact,
	}
	if b.wants(TableKernel) {
		c.Devices = b.o.Devices
	}
	if b.wants(TableLifecycle) || b.wants(TableGrowth) {
		c.Volumes = b.o.Volumes
	}
	if c.Machine == "" {
		c.Machine = machine("/proc/cpuinfo")
	}
	if c.Label == "" {
		c.Label = c.Kernel + " " + kind.String()
	}
	b.report = &Report{Format: reportFormat, Conditions: c, Kinds: []string{kind.String()}}
	b.say("%s, %s, %d CPUs, %s", c.Kernel, kind, c.CPUs, c.Machine)
	return nil
}

// probeKind asks a few times while the answer is LOCKED, which a busy machine also
// gives on a kernel that is not.
func (b *bench) probeKind(ctx context.Context) (kind ublk.DeleteKind, err error) {
	for range 5 {
		if kind, err = b.fleet.control.ProbeDeleteKind(ctx); err != nil || kind != ublk.DeleteLocked {
			return kind, err
		}
	}
	return kind, nil
}

// say writes a line of progress.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.o.Progress, "bench %5.0fs  %s\n", time.Since(b.begin).Seconds(), fmt.Sprintf(format, args...))
}

// turns lets each round begin at another point.
func turns[T any](points []T, round int) []T {
	at := round % len(points)
	return slices.Concat(points[at:], points[:at])
}
