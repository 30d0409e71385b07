package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build events
	Test       string
	Output     string
	Elapsed    float64
}

// stream follows one or more concatenated outputs of `go test -json`.
type stream struct {
	w      io.Writer
	open   map[string]bool            // packages that started and did not end
	tests  map[string]map[string]bool // package → tests under way
	output map[string][]string        // "package test" → what it printed
	counts map[string]int             // package → tests that passed
	res    result
}

func newStream(w io.Writer) *stream {
	return &stream{
		w: w, open: map[string]bool{}, tests: map[string]map[string]bool{},
		output: map[string][]string{}, counts: map[string]int{},
	}
}

// line takes one line. What is not an event is shown as it is.
func (s *stream) line(text string) {
	var e event
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &e) != nil || e.Action == "" {
		fmt.Fprint(s.w, text)
		return
	}
	key := e.Package + " " + e.Test
	switch {
	case e.Action == "build-output":
		fmt.Fprint(s.w, e.Output)
	case e.Action == "output":
		s.output[key] = append(s.output[key], e.Output)
	case e.Package == "":
		// A build event: the package that could not be built fails by itself.
	case e.Test != "":
		s.test(e, key)
	default:
		s.pkg(e, key)
	}
}

func (s *stream) test(e event, key string) {
	switch e.Action {
	case "run":
		s.begin(e)
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	delete(s.tests[e.Package], e.Test)
	name := short(e.Package) + "." + e.Test
	switch e.Action {
	case "pass":
		s.res.Passed++
		s.counts[e.Package]++
	case "skip":
		if why := reason(s.output[key]); why != "" {
			name += ": " + why
		}
		s.res.Skipped = append(s.res.Skipped, name)
	case "fail":
		s.res.Failed = append(s.res.Failed, name)
		fmt.Fprintf(s.w, "--- FAIL %s (%.2fs)\n%s", name, e.Elapsed, strings.Join(s.output[key], ""))
	}
	delete(s.output, key)
}

// said is a line that a test logged, with its place.
var said = regexp.MustCompile(`^\s+\w+\.go:\d+: (.*)`)

// reason is the last thing that a skipped test said; "" if it said nothing.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		if m := said.FindStringSubmatch(line); m != nil {
			return strings.TrimSpace(m[1])
		}
	}
	return ""
}

func (s *stream) begin(e event) {
	if s.tests[e.Package] == nil {
		s.tests[e.Package] = map[string]bool{}
	}
	s.tests[e.Package][e.Test] = true
}

func (s *stream) pkg(e event, key string) {
	switch e.Action {
	case "start":
		s.open[e.Package] = true
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	delete(s.open, e.Package)
	switch e.Action {
	case "pass":
		fmt.Fprintf(s.w, "ok   %s (%d tests, %.1fs)\n", short(e.Package), s.counts[e.Package], e.Elapsed)
	case "fail":
		failed := slices.ContainsFunc(s.res.Failed, func(name string) bool { return strings.HasPrefix(name, short(e.Package)+".") })
		if !s.abandon(e.Package) && !failed {
			// It was not built, or died before its first test or after its last.
			s.res.Failed = append(s.res.Failed, short(e.Package)+": the package failed")
		}
		fmt.Fprintf(s.w, "FAIL %s (%.1fs)\n%s", short(e.Package), e.Elapsed, strings.Join(s.output[key], ""))
	}
	delete(s.output, key)
}

// abandon counts the package's tests that never ended as failed.
func (s *stream) abandon(pkg string) bool {
	var names []string
	for name := range s.tests[pkg] {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		s.res.Failed = append(s.res.Failed, short(pkg)+"."+name+": never ended")
		fmt.Fprintf(s.w, "--- FAIL %s.%s never ended\n%s", short(pkg), name, strings.Join(s.output[pkg+" "+name], ""))
	}
	delete(s.tests, pkg)
	return len(names) > 0
}

// result is what the whole stream amounts to; packages that it leaves open failed.
func (s *stream) result() result {
	var open []string
	for pkg := range s.open {
		open = append(open, pkg)
	}
	slices.Sort(open)
	for _, pkg := range open {
		if !s.abandon(pkg) {
			s.res.Failed = append(s.res.Failed, short(pkg)+": the package never ended")
		}
	}
	return s.res
}

// short leaves the module's host and owner out of an import path.
func short(pkg string) string {
	return strings.TrimPrefix(pkg, "github.com/csi-ublk/csi-ublk/")
}
