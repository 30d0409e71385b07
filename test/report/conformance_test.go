package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestConformance(t *testing.T) {
	const name = `[It] External Storage [Driver: csi-ublk.io] [Testpattern: Dynamic PV (xfs)][Feature:X] %s`
	pattern := func(what string) string { return strings.ReplaceAll(name, "%s", what) }
	cases := func(list ...string) string {
		return `<testsuites><testsuite>` + strings.Join(list, "") + `</testsuite></testsuites>`
	}
	passed := `<testcase name="` + pattern("volumes should store data") + `" status="passed"/>`
	failed := `<testcase name="` + pattern("volumes should not fail") + `" status="failed"/>`
	skipped := `<testcase name="` + pattern("volume-expand should grow") + `" status="skipped"><skipped message="skipped - Driver does not grow - skipping"/></testcase>`
	unchosen := `<testcase name="` + pattern("volumes should be left alone") + `" status="skipped"><skipped message="skipped"/></testcase>`
	setup := `<testcase name="[SynchronizedBeforeSuite]" status="passed"/>`
	for what, c := range map[string]struct {
		text string
		ok   bool
		want []string
	}{
		"all":        {cases(setup, passed, skipped, unchosen), true, []string{"| volumes | 1 | 0 | 0 |", "| volume-expand | 0 | 0 | 1 |", "| **all** | **1** | **0** | **1** |", "- 1: Driver does not grow\n"}},
		"a failure":  {cases(passed, failed), false, []string{"| volumes | 1 | 1 | 0 |", "- wait: [It] External Storage"}},
		"no test":    {cases(setup, unchosen), false, []string{"| **all** | **0** |"}},
		"only skips": {cases(skipped), false, nil},
	} {
		file := filepath.Join(t.TempDir(), "wait.xml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		ok, err := conformance(&out, []string{file})
		if err != nil || ok != c.ok {
			t.Errorf("%s: %v, %v", what, ok, err)
		}
		for _, w := range c.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: no %q in\n%s", what, w, &out)
			}
		}
	}
	// In parts: the last run of a test counts, and says so of one that failed before.
	dir := t.TempDir()
	var files []string
	for i, text := range []string{cases(passed, strings.Replace(failed, "failed", "timedout", 1)), cases(unchosen, strings.Replace(failed, `"failed"`, `"passed"`, 1))} {
		file := filepath.Join(dir, []string{"wait-b.xml", "wait-a.xml"}[i])
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Unix(int64(i), 0), time.Unix(int64(i), 0)); err != nil {
			t.Fatal(err)
		}
		files = append([]string{file}, files...)
	}
	var out strings.Builder
	if ok, err := conformance(&out, files); err != nil || !ok {
		t.Errorf("in parts: %v, %v", ok, err)
	}
	for _, w := range []string{"| volumes | 2 | 0 | 0 |", "passed in a later run:\n\n- wait: [It] External"} {
		if !strings.Contains(out.String(), w) {
			t.Errorf("in parts: no %q in\n%s", w, &out)
		}
	}
	if _, err := conformance(&strings.Builder{}, []string{"no-such-file"}); err == nil {
		t.Error("no file, no error")
	}
}
