package main

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// junit is what is read of ginkgo's JUnit report.
type junit struct {
	Suites []struct {
		Cases []junitCase `xml:"testcase"`
	} `xml:"testsuite"`
}

type junitCase struct {
	Name    string `xml:"name,attr"`
	Status  string `xml:"status,attr"`
	Skipped *struct {
		Message string `xml:"message,attr"`
	} `xml:"skipped"`
}

// subject is what a test of Kubernetes' storage suite is about: the test pattern and the
// kind of tests, such as "Dynamic PV (xfs)" and "volumes".
var subject = regexp.MustCompile(`\[Testpattern: ([^\]]*)\](?:\s*\[[^\]]*\])*\s*([\w-]+)`)

// tally counts the tests about one subject.
type tally struct{ passed, failed, inapplicable int }

// outcome is what became of a test, and in which run.
type outcome struct {
	run      string // the description of the driver
	kind     string // of tests
	test     junitCase
	repaired bool // it failed in an earlier run
}

// conformance writes a table of what became of Kubernetes' storage tests, and whether none
// failed. Each file is named after a description of the driver, or that and a part of the
// tests: wait.xml, wait-snapshots.xml. Of a test that is in several, the last run counts,
// and one that failed before is told.
func conformance(w io.Writer, files []string) (ok bool, err error) {
	outcomes, err := readOutcomes(files)
	if err != nil {
		return false, err
	}
	var total tally
	var failed, repaired []string
	reasons := make(map[string]int)
	kinds := make(map[string]*tally)
	for _, key := range slices.Sorted(maps.Keys(outcomes)) {
		o := outcomes[key]
		t := kinds[o.kind]
		if t == nil {
			t = &tally{}
			kinds[o.kind] = t
		}
		switch o.test.Status {
		case "passed":
			t.passed++
			total.passed++
			if o.repaired {
				repaired = append(repaired, o.run+": "+o.test.Name)
			}
		case "skipped", "pending":
			t.inapplicable++
			total.inapplicable++
			reasons[whyNot(o.test)]++
		default:
			t.failed++
			total.failed++
			failed = append(failed, o.run+": "+o.test.Name)
		}
	}
	fmt.Fprintf(w, "| tests | passed | failed | not applicable |\n|---|--:|--:|--:|\n")
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		t := kinds[kind]
		fmt.Fprintf(w, "| %s | %d | %d | %d |\n", kind, t.passed, t.failed, t.inapplicable)
	}
	fmt.Fprintf(w, "| **all** | **%d** | **%d** | **%d** |\n", total.passed, total.failed, total.inapplicable)
	if len(failed) > 0 {
		fmt.Fprintf(w, "\nFailed:\n\n")
		for _, f := range failed {
			fmt.Fprintf(w, "- %s\n", f)
		}
	}
	if len(repaired) > 0 {
		fmt.Fprintf(w, "\nFailed at first, passed in a later run:\n\n")
		for _, r := range repaired {
			fmt.Fprintf(w, "- %s\n", r)
		}
	}
	fmt.Fprintf(w, "\nNot applicable, as the suite itself says:\n\n")
	list := slices.Sorted(maps.Keys(reasons))
	slices.SortStableFunc(list, func(a, b string) int { return reasons[b] - reasons[a] })
	for _, r := range list {
		fmt.Fprintf(w, "- %d: %s\n", reasons[r], r)
	}
	return total.failed == 0 && total.passed > 0, nil
}

func whyNot(c junitCase) string {
	if c.Skipped == nil || c.Skipped.Message == "" {
		return "pending in the suite"
	}
	text := strings.TrimPrefix(c.Skipped.Message, "skipped - ")
	return strings.TrimSuffix(text, " - skipping")
}

// readOutcomes returns the last outcome of every test that a run's focus chose.
func readOutcomes(files []string) (map[string]outcome, error) {
	files = slices.Clone(files)
	when := make(map[string]int64)
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		when[file] = info.ModTime().UnixNano()
	}
	slices.SortStableFunc(files, func(a, b string) int { return cmp.Compare(when[a], when[b]) })
	all := make(map[string]outcome)
	for _, file := range files {
		cases, err := readJUnit(file)
		if err != nil {
			return nil, err
		}
		run, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".xml"), "-")
		for _, c := range cases {
			m := subject.FindStringSubmatch(c.Name)
			// Not chosen by the run's focus, or no test but a step of the suite.
			if m == nil || c.Skipped != nil && c.Skipped.Message == "skipped" {
				continue
			}
			key := run + ": " + c.Name
			before, twice := all[key]
			all[key] = outcome{run: run, kind: m[2], test: c, repaired: twice && (before.repaired || before.bad())}
		}
	}
	return all, nil
}

func (o outcome) bad() bool {
	return o.test.Status != "passed" && o.test.Status != "skipped" && o.test.Status != "pending"
}

func readJUnit(file string) ([]junitCase, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var report junit
	if err := xml.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	var list []junitCase
	for _, s := range report.Suites {
		list = append(list, s.Cases...)
	}
	return list, nil
}
