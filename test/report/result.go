package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// result is what became of one tier.
type result struct {
	Passed  int      `json:"passed"`
	Failed  []string `json:"failed"`  // names of tests, and of packages that failed without one
	Skipped []string `json:"skipped"` // names of tests, and why
	Seconds float64  `json:"seconds"`
	// Error says that the tier's command itself failed, with or without tests.
	Error string `json:"error,omitempty"`
}

// problems are the failures and, if nothing failed and yet the tier is not good,
// why it is not.
func (r result) problems() []string {
	if len(r.Failed) > 0 {
		return r.Failed
	}
	switch {
	case r.Error != "":
		return []string{r.Error}
	case r.Passed == 0:
		return []string{"ran no test"}
	}
	return nil
}

func (r result) ok() bool { return len(r.problems()) == 0 }

func (r result) save(dir, tier string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, tier+".json"), append(text, '\n'), 0o644)
}

func load(dir, tier string) (result, error) {
	var r result
	text, err := os.ReadFile(filepath.Join(dir, tier+".json"))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// sum prints the table and the count, and says whether all is well.
func sum(w io.Writer, dir string, tiers []string) bool {
	var passed, failed, skipped int
	var details strings.Builder
	fmt.Fprintf(w, "%-24s %7s %7s %8s %9s\n", "tier", "passed", "failed", "skipped", "time")
	for _, tier := range tiers {
		r, err := load(dir, tier)
		if err != nil {
			r.Error = "did not run: " + err.Error()
		}
		problems := r.problems()
		elapsed := time.Duration(r.Seconds * float64(time.Second)).Round(time.Second)
		fmt.Fprintf(w, "%-24s %7d %7d %8d %9s\n", tier, r.Passed, len(problems), len(r.Skipped), elapsed)
		for _, p := range problems {
			fmt.Fprintf(&details, "FAIL %s: %s\n", tier, p)
		}
		for _, s := range r.Skipped {
			fmt.Fprintf(&details, "skip %s: %s\n", tier, s)
		}
		passed, failed, skipped = passed+r.Passed, failed+len(problems), skipped+len(r.Skipped)
	}
	if passed+failed == 0 {
		failed = 1
		details.WriteString("FAIL: nothing ran\n")
	}
	fmt.Fprintf(w, "%s%d passed, %d failed, %d skipped\n", &details, passed, failed, skipped)
	return failed == 0
}
