package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Formats of Render.
const (
	FormatText     = "text"
	FormatMarkdown = "markdown"
	FormatJSON     = "json"
)

// Formats are all of them.
var Formats = []string{FormatText, FormatJSON, FormatMarkdown}

// Render writes conditions, tables and ratios. base is the label that every other
// is compared with; "" means none.
func (m *Merged) Render(w io.Writer, format, base string) error {
	if format == FormatJSON {
		return m.JSON(w)
	}
	grids := append([]grid{m.conditions()}, m.grids()...)
	if base != "" {
		g, err := m.compare(base)
		if err != nil {
			return err
		}
		grids = append(grids, g)
	}
	var text strings.Builder
	for _, g := range grids {
		if format == FormatMarkdown {
			g.markdown(&text)
		} else {
			g.text(&text)
		}
	}
	_, err := io.WriteString(w, strings.TrimRight(text.String(), "\n")+"\n")
	return err
}

// conditions are the first grid: a column a label.
func (m *Merged) conditions() grid {
	g := grid{title: "conditions", head: []string{""}}
	rows := [][]string{{"kernel"}, {"DEL_DEV, by the probe"}, {"CPUs"}, {"machine"}, {"csi-ublk"}, {"devices (table kernel)"}, {"volumes (lifecycle, growth)"}, {"a device is gone when"}, {"rounds"}}
	oneCPU := false
	for _, r := range m.Reports {
		c := r.Conditions
		g.head = append(g.head, c.Label)
		for i, v := range []string{c.Kernel, r.kinds(), fmt.Sprint(c.CPUs), c.Machine, c.Version, fmt.Sprint(c.Devices), fmt.Sprint(c.Volumes), gone[c.Exact], fmt.Sprint(r.rounds())} {
			rows[i] = append(rows[i], v)
		}
		oneCPU = oneCPU || c.CPUs == 1
	}
	g.rows = rows
	g.notes = []string{
		"A wave is shown as the median of the rounds (least..most), single operations as p50 / p99 of all rounds. A round visits the ways in turns, beginning with another one each time.",
		"Commands of the callers go through one io_uring. Our order: STOP_DEV; all tags aborted; DEL_DEV_ASYNC with the char device open; munmap, close; the clock stops when every device is gone (the last ones are asked about until they are, the others after the clock, which goes on if one is not). Plain order: STOP_DEV; close; DEL_DEV, which waits for that itself.",
	}
	if oneCPU {
		g.notes = append(g.notes, "With one CPU only waiting overlaps, not work: what more callers bring is a lower bound, STOP, START and mkfs hardly scale, p99 at many in flight is mostly waiting for the CPU, and figures per CPU are those of one.")
	}
	return g
}

var gone = map[bool]string{true: "its number is free", false: "it is not listed, somewhat too early"}

// kinds is what the probe said in the runs.
func (r *Report) kinds() string {
	kind := r.kind()
	agree := 0
	for _, k := range r.Kinds {
		if k == kind {
			agree++
		}
	}
	if agree == len(r.Kinds) {
		return kind
	}
	return fmt.Sprintf("%s (%d of %d probes)", kind, agree, len(r.Kinds))
}

func (r *Report) rounds() int {
	n := 0
	for _, s := range r.Series {
		n = max(n, len(s.Rounds))
	}
	return n
}

func (g grid) text(w io.Writer) {
	fmt.Fprintf(w, "%s\n", g.title)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range slices.Concat([][]string{g.head}, g.rows) {
		fmt.Fprintf(t, "  %s\n", strings.Join(row, "\t"))
	}
	t.Flush()
	for _, n := range g.notes {
		fmt.Fprintf(w, "  %s\n", n)
	}
	fmt.Fprintln(w)
}

func (g grid) markdown(w io.Writer) {
	fmt.Fprintf(w, "### %s\n\n", strings.ToUpper(g.title[:1])+g.title[1:])
	line := func(cells []string) {
		escaped := make([]string, len(cells))
		for i, c := range cells {
			escaped[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(escaped, " | "))
	}
	line(g.head)
	line(slices.Repeat([]string{"---"}, len(g.head)))
	for _, row := range g.rows {
		line(row)
	}
	fmt.Fprintln(w)
	for _, n := range g.notes {
		fmt.Fprintf(w, "%s\n\n", n)
	}
}
