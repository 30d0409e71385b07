package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStream(t *testing.T) {
	const start = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
`
	for name, c := range map[string]struct {
		lines string
		want  result
	}{
		"a pass, a failure and a skip are counted": {lines: start + `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"run","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:8: no: for want of: x\n"}
{"Action":"output","Package":"p","Test":"TestC","Output":"--- SKIP: TestC (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p"}
`, want: result{Passed: 1, Failed: []string{"p.TestB"}, Skipped: []string{"p.TestC: no: for want of: x"}}},
		"a package without tests is nothing": {lines: `{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"?   p [no test files]\n"}
{"Action":"skip","Package":"p"}
`},
		"a package that is not built fails": {lines: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"p/a.go:1: oops\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"start","Package":"p"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}
`, want: result{Failed: []string{"p: the package failed"}}},
		"a test that a panic or a time limit ends fails": {lines: start + `{"Action":"fail","Package":"p"}
`, want: result{Failed: []string{"p.TestA: never ended"}}},
		"a stream that breaks off fails": {lines: start, want: result{Failed: []string{"p.TestA: never ended"}}},
		"a package that breaks off between tests fails": {lines: start + `{"Action":"pass","Package":"p","Test":"TestA"}
`, want: result{Passed: 1, Failed: []string{"p: the package never ended"}}},
		"a package that fails after its tests passed fails": {lines: start + `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`, want: result{Passed: 1, Failed: []string{"p: the package failed"}}},
		"what is no event is let through": {lines: "building the kernel\n{not json\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream(io.Discard)
			for line := range strings.Lines(c.lines) {
				s.line(line)
			}
			if diff := cmp.Diff(c.want, s.result()); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStreamShowsWhatAFailedTestPrinted(t *testing.T) {
	var shown bytes.Buffer
	s := newStream(&shown)
	for _, line := range []string{
		`{"Action":"output","Package":"p","Test":"TestA","Output":"expected 1\n"}`,
		`{"Action":"fail","Package":"p","Test":"TestA"}`,
	} {
		s.line(line)
	}
	if !strings.Contains(shown.String(), "expected 1\n") {
		t.Errorf("shown %q", &shown)
	}
}

func TestRunAndSum(t *testing.T) {
	const good = `echo '{"Action":"start","Package":"p"}'; echo '{"Action":"pass","Package":"p","Test":"TestA"}'; echo '{"Action":"pass","Package":"p"}'`
	for name, c := range map[string]struct {
		script string // of tier "one"; "" never runs
		ok     bool
		last   string
	}{
		"a good tier":                           {script: good, ok: true, last: "1 passed, 0 failed, 0 skipped"},
		"a tier whose command fails":            {script: good + "; exit 3", last: "1 passed, 1 failed, 0 skipped"},
		"a tier that runs nothing":              {script: "true", last: "0 passed, 1 failed, 0 skipped"},
		"a tier that was asked for and not run": {last: "0 passed, 1 failed, 0 skipped"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.script != "" {
				r, err := runTier(t.Context(), dir, "one", []string{"sh", "-c", c.script}, io.Discard)
				if err != nil {
					t.Fatal(err)
				}
				if r.ok() != c.ok {
					t.Errorf("tier ok %t, want %t: %+v", r.ok(), c.ok, r)
				}
				if err := r.save(dir, "one"); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			if ok := sum(&out, dir, []string{"one"}); ok != c.ok {
				t.Errorf("sum says %t, want %t", ok, c.ok)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if got := lines[len(lines)-1]; got != c.last {
				t.Errorf("last line %q, want %q", got, c.last)
			}
		})
	}
}

func TestAnEarlierResultIsForgotten(t *testing.T) {
	dir := t.TempDir()
	if err := (result{Passed: 1}).save(dir, "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := runTier(t.Context(), dir, "one", []string{filepath.Join(dir, "none")}, io.Discard); err == nil {
		t.Error("a command that can't be started gave no error")
	}
	if sum(io.Discard, dir, []string{"one"}) {
		t.Error("sum is content with the result of an earlier run")
	}
}
