package bench

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSummary(t *testing.T) {
	for name, c := range map[string]struct {
		series Series
		want   summary
	}{
		"waves: a round counts once, with its median": {
			Series{Rounds: [][]float64{{1, 2, 30}, {4}, {5, 7}}}, summary{n: 3, median: 4, least: 2, most: 6, p99: 5.96},
		},
		"an even number of rounds": {
			Series{Rounds: [][]float64{{4}, {1}}}, summary{n: 2, median: 2.5, least: 1, most: 4, p99: 3.97},
		},
		"single operations are pooled": {
			Series{Key: Key{Each: true}, Rounds: [][]float64{{3, 1}, {2, 100, 4}}}, summary{n: 5, median: 3, least: 1, most: 100, p99: 96.16},
		},
		"a round without samples does not count": {
			Series{Rounds: [][]float64{{}, {2}}}, summary{n: 1, median: 2, least: 2, most: 2, p99: 2},
		},
	} {
		got := c.series.summary()
		near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
		if d := cmp.Diff(c.want, got, cmp.AllowUnexported(summary{}), near); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if got := (&Series{}).summary().median; !math.IsNaN(got) {
		t.Errorf("nothing measured: %v", got)
	}
}

func TestTurnsBeginElsewhereEachRound(t *testing.T) {
	for round, want := range []string{"abc", "bca", "cab", "abc"} {
		if got := strings.Join(turns([]string{"a", "b", "c"}, round), ""); got != want {
			t.Errorf("round %d: %s, want %s", round, got, want)
		}
	}
}

// kernelReport is one round of the table kernel with these seconds of STOP+DEL and
// DEL at 1 and 16 callers.
func kernelReport(label, kind string, plain, ours [2]float64) *Report {
	r := &Report{Format: reportFormat, Kinds: []string{kind}, Conditions: Conditions{Label: label, Kernel: "7", CPUs: 2, Machine: "x", Devices: 10}}
	for i, load := range []int{16, 1} { // as turns have it
		for _, part := range []string{partDelete, partBoth} {
			r.add(Key{Table: TableKernel, Part: part, Unit: "s", Way: wayOurs, Load: load}, ours[i])
			r.add(Key{Table: TableKernel, Part: part, Unit: "s", Way: wayPlain, Load: load}, plain[i])
		}
	}
	return r
}

func TestMergePutsRoundsOfALabelTogether(t *testing.T) {
	m, err := Merge(
		kernelReport("a", "LOCKED", [2]float64{8, 9}, [2]float64{1, 7}),
		kernelReport("b", "UNLOCKED", [2]float64{1, 9}, [2]float64{1, 9}),
		kernelReport("a", "NOWAIT", [2]float64{10, 9}, [2]float64{3, 7}),
		kernelReport("a", "LOCKED", [2]float64{9, 9}, [2]float64{2, 7}),
	)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Reports) != 2 || m.Reports[0].rounds() != 3 || m.Reports[1].rounds() != 1 {
		t.Fatalf("%d reports", len(m.Reports))
	}
	if got := m.Reports[0].kinds(); got != "LOCKED (2 of 3 probes)" {
		t.Errorf("kinds %q", got)
	}
	if got, ok := m.Reports[0].median(TableKernel, partDelete, wayPlain, 16); !ok || got != 9 {
		t.Errorf("median %v, %v", got, ok)
	}
	without := &Report{Kinds: []string{"LOCKED"}, Conditions: m.Reports[0].Conditions}
	without.Conditions.Devices, without.Conditions.Volumes = 0, 30
	if m, err := Merge(m.Reports[0], without); err != nil || m.Reports[0].Conditions.Devices != 10 || m.Reports[0].Conditions.Volumes != 30 {
		t.Errorf("runs of different tables: %v", err)
	}
	for want, kinds := range map[string][]string{"LOCKED": {"LOCKED", "NOWAIT"}, "UNLOCKED": {"LOCKED", "LOCKED", "UNLOCKED"}, "NOWAIT": {"NOWAIT", "LOCKED", "NOWAIT"}} {
		if got := (&Report{Kinds: kinds}).kind(); got != want {
			t.Errorf("%v: %s, want %s", kinds, got, want)
		}
	}
	other := kernelReport("a", "LOCKED", [2]float64{}, [2]float64{})
	other.Conditions.Devices = 4000
	if _, err := Merge(m.Reports[0], other); err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), "4000") {
		t.Errorf("runs of different sizes merge: %v", err)
	}
}

func TestJSONKeepsTheSamples(t *testing.T) {
	a, b := kernelReport("a", "LOCKED", [2]float64{8, 9}, [2]float64{1, 7}), kernelReport("b", "UNLOCKED", [2]float64{1, 2}, [2]float64{3, 4})
	for name, want := range map[string]*Merged{"one": {Reports: []*Report{a}}, "several": {Reports: []*Report{a, b}}} {
		var file bytes.Buffer
		if err := want.JSON(&file); err != nil {
			t.Fatal(err)
		}
		got, err := Read(&file, "f")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want.Reports, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	for text, says := range map[string]string{"{": "f: ", `{"format": 99}`: "format 99", "{}": "format 0"} {
		if _, err := Read(strings.NewReader(text), "f"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
