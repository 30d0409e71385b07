package bench

import (
	"fmt"
	"math"
	"slices"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// A claim is a ratio of two medians, and what it is to be.
type claim struct {
	what        string
	ratio       float64
	least, most float64 // 0 or infinite where it has no bound
}

func (c claim) row() []string {
	want, holds := "", ""
	switch {
	case c.least > 0:
		want = "at least " + number(c.least)
	case !math.IsInf(c.most, 1):
		want = "at most " + number(c.most)
	}
	if want != "" {
		holds = "yes"
		if c.ratio < c.least || c.ratio > c.most {
			holds = "no"
		}
	}
	return []string{c.what, number(c.ratio), want, holds}
}

// claims are what csi-ublk promises of these figures, as far as they are there.
func (m *Merged) claims() []grid {
	var list []claim
	list = append(list, m.kernelClaims()...)
	for _, r := range m.Reports {
		list = append(list, r.lifecycleClaims()...)
		list = append(list, r.growthClaims()...)
		list = append(list, r.nodeClaims()...)
	}
	if len(list) == 0 {
		return nil
	}
	g := grid{title: "ratios", head: []string{"ratio of medians", "is", "is to be", "holds"}}
	for _, c := range list {
		g.rows = append(g.rows, c.row())
	}
	return []grid{g}
}

// An operand is one median.
type operand struct {
	of               *Report
	table, part, way string
	load             int
}

func (o operand) value() (float64, bool) {
	if o.of == nil {
		return 0, false
	}
	return o.of.median(o.table, o.part, o.way, o.load)
}

// ratio is a claim about a/b, none if one of them was not measured.
func ratio(what string, a, b operand, least, most float64) []claim {
	x, ok := a.value()
	y, also := b.value()
	if !ok || !also || y == 0 {
		return nil
	}
	return []claim{{what: what, ratio: x / y, least: least, most: most}}
}

var unbounded = math.Inf(1)

func (m *Merged) kernelClaims() (list []claim) {
	locked, unlocked := m.kind(ublk.DeleteLocked), m.kind(ublk.DeleteUnlocked)
	if locked == nil {
		return nil
	}
	loads := locked.loads(TableKernel)
	if len(loads) == 0 {
		return nil
	}
	few, many := slices.Min(loads), slices.Max(loads)
	at := func(r *Report, part, way string, load int) operand { return operand{r, TableKernel, part, way, load} }
	list = append(list, ratio(fmt.Sprintf("STOP+DEL, %d callers: our order on LOCKED to plain order on UNLOCKED", many),
		at(locked, partBoth, wayOurs, many), at(unlocked, partBoth, wayPlain, many), 0, 1.1)...)
	list = append(list, ratio(fmt.Sprintf("DEL, %d callers: our order on LOCKED to plain order on UNLOCKED", many),
		at(locked, partDelete, wayOurs, many), at(unlocked, partDelete, wayPlain, many), 0, 1.1)...)
	list = append(list, ratio(fmt.Sprintf("DEL, %d callers, on LOCKED: plain order to our order", many),
		at(locked, partDelete, wayPlain, many), at(locked, partDelete, wayOurs, many), 4, unbounded)...)
	if few == 1 {
		list = append(list, ratio("STOP+DEL, 1 caller, on LOCKED: our order to plain order",
			at(locked, partBoth, wayOurs, 1), at(locked, partBoth, wayPlain, 1), 0, 1)...)
	}
	return list
}

// lifecycleClaims show what server, journal and worker cost.
func (r *Report) lifecycleClaims() (list []claim) {
	for _, part := range []string{partUpRate, partDownRate} {
		for _, load := range r.loads(TableLifecycle) {
			at := func(way string) operand { return operand{r, TableLifecycle, part, way, load} }
			list = append(list, ratio(fmt.Sprintf("%s: %s a second, %d in flight: bare to server", r.Conditions.Label, part, load),
				at(wayBare), at(wayServer), 0, unbounded)...)
		}
	}
	return list
}

func (r *Report) growthClaims() (list []claim) {
	for _, load := range r.loads(TableGrowth) {
		if load == 0 {
			continue
		}
		at := func(load int) operand { return operand{r, TableGrowth, partEach, wayServer, load} }
		list = append(list, ratio(fmt.Sprintf("%s: up and down beside %d others to beside none", r.Conditions.Label, load), at(load), at(0), 0, 1.1)...)
	}
	return list
}

func (r *Report) nodeClaims() (list []claim) {
	var parts []string
	for _, s := range r.Series {
		if s.Table == TableNode && !s.Each && !slices.Contains(parts, s.Part) {
			parts = append(parts, s.Part)
		}
	}
	for _, part := range parts {
		for _, load := range r.loads(TableNode) {
			at := func(way string) operand { return operand{r, TableNode, part, way, load} }
			for _, way := range []string{wayNode, wayInline, wayMkfs} {
				list = append(list, ratio(fmt.Sprintf("%s: %s a second, %d in flight: %s to loop device", r.Conditions.Label, part, load, way),
					at(way), at(wayLoop), 0, unbounded)...)
			}
		}
	}
	return list
}

// Compare adds to the tables what every series is to that of another label, for
// two versions on one kernel.
func (m *Merged) compare(base string) (grid, error) {
	from := m.label(base)
	if from == nil {
		return grid{}, fmt.Errorf("no report is labelled %q", base)
	}
	g := grid{title: "ratios to " + base, head: []string{"median of", base}}
	others := slices.DeleteFunc(slices.Clone(m.Reports), func(r *Report) bool { return r == from })
	for _, r := range others {
		g.head = append(g.head, r.Conditions.Label, "ratio")
	}
	for _, s := range from.Series {
		was := s.summary().median
		row := []string{fmt.Sprintf("%s: %s, %s, %d, %s", s.Table, s.Part, s.Way, s.Load, s.Unit), number(was)}
		for _, r := range others {
			is, ok := r.median(s.Table, s.Part, s.Way, s.Load)
			if !ok || was == 0 {
				row = append(row, "", "")
				continue
			}
			row = append(row, number(is), number(is/was))
		}
		g.rows = append(g.rows, row)
	}
	return g, nil
}
