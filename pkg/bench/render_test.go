package bench

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func twoKernels(t *testing.T) *Merged {
	t.Helper()
	m, err := Merge(
		kernelReport("fixed", "UNLOCKED", [2]float64{1, 8}, [2]float64{1, 8}),
		kernelReport("current", "LOCKED", [2]float64{8, 8}, [2]float64{1.05, 8.8}),
		kernelReport("current", "LOCKED", [2]float64{9, 8}, [2]float64{1.05, 8.8}),
		kernelReport("current", "LOCKED", [2]float64{7, 8}, [2]float64{1.05, 8.8}),
	)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestKernelGridsAreSortedByCallersAndWay(t *testing.T) {
	g := twoKernels(t).grids()[0]
	want := grid{
		title: "kernel: DEL, s for all devices",
		head:  []string{"callers", "fixed: plain order", "fixed: our order", "current: plain order", "current: our order"},
		rows: [][]string{
			{"1", "8.00", "8.00", "8.00 (8.00..8.00)", "8.80 (8.80..8.80)"},
			{"16", "1.00", "1.00", "8.00 (7.00..9.00)", "1.05 (1.05..1.05)"},
		},
	}
	if d := cmp.Diff(want, g, cmp.AllowUnexported(grid{})); d != "" {
		t.Error(d)
	}
}

func TestClaimsAcrossKernels(t *testing.T) {
	all := twoKernels(t).claims()
	want := [][]string{
		{"STOP+DEL, 16 callers: our order on LOCKED to plain order on UNLOCKED", "1.05", "at most 1.10", "yes"},
		{"DEL, 16 callers: our order on LOCKED to plain order on UNLOCKED", "1.05", "at most 1.10", "yes"},
		{"DEL, 16 callers, on LOCKED: plain order to our order", "7.62", "at least 4.00", "yes"},
		{"STOP+DEL, 1 caller, on LOCKED: our order to plain order", "1.10", "at most 1.00", "no"},
	}
	if d := cmp.Diff(want, all[0].rows); d != "" {
		t.Error(d)
	}
	// A claim about what was not measured would be made up.
	m, err := Merge(kernelReport("fixed", "UNLOCKED", [2]float64{1, 8}, [2]float64{1, 8}))
	if err != nil || len(m.claims()) != 0 {
		t.Errorf("%v, %v", m.claims(), err)
	}
}

func TestGrowthClaimsCompareWithNone(t *testing.T) {
	r := &Report{}
	for others, ms := range map[int]float64{4000: 12, 0: 10, 1000: 10.5} {
		r.add(Key{Table: TableGrowth, Part: partEach, Way: wayServer, Load: others}, ms)
	}
	var got []string
	for _, c := range r.growthClaims() {
		got = append(got, c.row()[1]+" "+c.row()[3])
	}
	if d := cmp.Diff([]string{"1.05 yes", "1.20 no"}, got); d != "" {
		t.Error(d)
	}
}

func TestRender(t *testing.T) {
	m := twoKernels(t)
	for _, r := range m.Reports {
		r.Conditions.CPUs = 1
	}
	m.Reports[0].add(Key{Table: TableLifecycle, Part: "START", Unit: "ms", Way: wayBare, Load: 4, Each: true}, 1, 2, 3)
	for format, wants := range map[string][]string{
		FormatText:     {"conditions\n", "UNLOCKED", "With one CPU", "1.05 (1.05..1.05)", "bare: START, ms  2.00 / 2.98", "is to be"},
		FormatMarkdown: {"### Conditions\n\n|  | fixed | current |\n| --- | --- | --- |\n", "| 16 | 1.00 | 1.00 | 8.00 (7.00..9.00) | 1.05 (1.05..1.05) |", "With one CPU"},
	} {
		var text strings.Builder
		if err := m.Render(&text, format, ""); err != nil {
			t.Fatal(err)
		}
		for _, w := range wants {
			if !strings.Contains(text.String(), w) {
				t.Errorf("%s lacks %q:\n%s", format, w, &text)
			}
		}
	}
}

func TestCompareWithABase(t *testing.T) {
	m := twoKernels(t)
	var text strings.Builder
	if err := m.Render(&text, FormatMarkdown, "fixed"); err != nil {
		t.Fatal(err)
	}
	if want := "| kernel: DEL, plain order, 16, s | 1.00 | 8.00 | 8.00 |\n"; !strings.Contains(text.String(), want) {
		t.Errorf("lacks %q:\n%s", want, &text)
	}
	if err := m.Render(&text, FormatMarkdown, "gone"); err == nil || !strings.Contains(err.Error(), `"gone"`) {
		t.Errorf("an unknown label: %v", err)
	}
}
