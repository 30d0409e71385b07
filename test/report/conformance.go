package main

import (
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

// conformance writes a table of what became of Kubernetes' storage tests, a file a
// description of the driver, and whether none failed.
func conformance(w io.Writer, files []string) (ok bool, err error) {
	var total tally
	var failed []string
	reasons := make(map[string]int)
	kinds := make(map[string]*tally)
	for _, file := range files {
		cases, err := readJUnit(file)
		if err != nil {
			return false, err
		}
		name := strings.TrimSuffix(filepath.Base(file), ".xml")
		for _, c := range cases {
			m := subject.FindStringSubmatch(c.Name)
			// Not chosen by the run's focus, or no test but a step of the suite.
			if m == nil || c.Skipped != nil && c.Skipped.Message == "skipped" {
				continue
			}
			t := kinds[m[2]]
			if t == nil {
				t = &tally{}
				kinds[m[2]] = t
			}
			switch c.Status {
			case "passed":
				t.passed++
				total.passed++
			case "skipped", "pending":
				t.inapplicable++
				total.inapplicable++
				reasons[whyNot(c)]++
			default:
				t.failed++
				total.failed++
				failed = append(failed, name+": "+c.Name)
			}
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
