package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// A grid is a table as it is shown.
type grid struct {
	title string
	head  []string
	rows  [][]string
	notes []string
}

// entry is a series and the report it is of.
type entry struct {
	*Series
	of *Report
}

func (m *Merged) entries(table string) []entry {
	var list []entry
	for _, r := range m.Reports {
		for _, s := range r.Series {
			if s.Table == table {
				list = append(list, entry{s, r})
			}
		}
	}
	return list
}

// shape says which of a series' coordinates become grids, rows and columns.
type shape struct {
	corner         string // what is above the names of the rows
	grid, row, col func(entry) string
}

// pivot makes grids of a table's series. Names come in the order in which they are
// first met.
func pivot(list []entry, s shape) []grid {
	var grids []grid
	for _, title := range names(list, s.grid) {
		here := slices.DeleteFunc(slices.Clone(list), func(e entry) bool { return s.grid(e) != title })
		cols := names(here, s.col)
		g := grid{title: title, head: append([]string{s.corner}, cols...)}
		for _, row := range names(here, s.row) {
			line := []string{row}
			for _, col := range cols {
				i := slices.IndexFunc(here, func(e entry) bool { return s.row(e) == row && s.col(e) == col })
				if i < 0 {
					line = append(line, "")
					continue
				}
				line = append(line, cell(here[i].Series))
			}
			g.rows = append(g.rows, line)
		}
		grids = append(grids, g)
	}
	return grids
}

func names(list []entry, of func(entry) string) []string {
	var out []string
	for _, e := range list {
		if n := of(e); !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// cell shows p50 and p99 of single operations, and of waves the median with the
// least and the most.
func cell(s *Series) string {
	x := s.summary()
	switch {
	case x.n == 0:
		return ""
	case s.Each:
		return fmt.Sprintf("%s / %s", number(x.median), number(x.p99))
	case x.n == 1:
		return number(x.median)
	}
	return fmt.Sprintf("%s (%s..%s)", number(x.median), number(x.least), number(x.most))
}

// number has three digits that count, and no more than are measured.
func number(x float64) string {
	switch a := math.Abs(x); {
	case math.IsNaN(x):
		return "?"
	case a >= 100:
		return fmt.Sprintf("%.0f", x)
	case a >= 10:
		return fmt.Sprintf("%.1f", x)
	case a >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3f", x)
}

// The tables' grids, in the order of Tables.
func (m *Merged) grids() []grid {
	withUnit := func(e entry) string {
		if e.Unit == "" {
			return e.Part
		}
		return e.Part + ", " + e.Unit
	}
	label := func(e entry) string { return e.of.Conditions.Label }
	load := func(e entry) string { return fmt.Sprint(e.Load) }
	byLabelAndWay := func(e entry) string { return label(e) + ": " + e.Way }
	shapes := map[string]shape{
		TableKernel: {
			corner: "callers", row: load, col: byLabelAndWay,
			grid: func(e entry) string { return "kernel: " + withUnit(e) + " for all devices" },
		},
		TableLifecycle: {
			corner: "in flight", row: func(e entry) string { return e.Way + ": " + withUnit(e) }, col: load,
			grid: func(e entry) string { return "lifecycle on " + label(e) },
		},
		TableGrowth: {
			corner: "others", row: load, col: label,
			grid: func(e entry) string { return "growth: " + withUnit(e) + ", beside idle devices" },
		},
		TableIdle: {
			corner: "per idle device", row: withUnit,
			col:  func(e entry) string { return fmt.Sprintf("%s: at %d", label(e), e.Load) },
			grid: func(entry) string { return "idle" },
		},
		TableNode: {
			corner: "in flight", row: load, col: byLabelAndWay,
			grid: func(e entry) string { return "node: " + withUnit(e) },
		},
	}
	var all []grid
	for _, table := range Tables {
		list := m.entries(table)
		// Turns begin elsewhere each round: the loads come in any order.
		slices.SortStableFunc(list, func(a, b entry) int {
			return cmp.Or(cmp.Compare(a.Load, b.Load), cmp.Compare(m.at(a.of), m.at(b.of)), cmp.Compare(slices.Index(ways, a.Way), slices.Index(ways, b.Way)))
		})
		all = append(all, pivot(list, shapes[table])...)
	}
	return append(all, m.claims()...)
}

// ways in the order of their columns.
var ways = []string{wayPlain, wayOurs, wayBare, wayServer, wayNode, wayInline, wayMkfs, wayLoop}

func (m *Merged) at(r *Report) int { return slices.Index(m.Reports, r) }
