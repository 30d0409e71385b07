package main

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

// maxLines is how long a file may be before it tells more than one story.
const maxLines = 450

// grabBags are names of packages that say nothing about what is in them.
var grabBags = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "shared", "base"}

// sanityDir may skip: csi-sanity brings specs of capabilities that the driver does
// not offer.
const sanityDir = "test/sanity"

// lacksFile has the one function by which a case of the end-to-end suite, which runs in
// anybody's cluster, says what that cluster lacks.
const lacksFile = "test/e2e/lacks_test.go"

// call is functions of one package that may be used in some places only.
type call struct {
	pkg   string
	names []string
	free  func(f file) bool
	why   string
}

var calls = []call{
	{"os", []string{"Exit"}, mainOrTest, "libraries return errors; only a main ends the process"},
	{"log", []string{"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln"}, mainOrTest, "libraries return errors"},
	// Examples print: their output is checked.
	{"fmt", []string{"Print", "Printf", "Println"}, mainOrTest, "libraries are silent"},
	{"context", []string{"TODO"}, nowhere, "take the caller's context"},
}

func nowhere(file) bool      { return false }
func mainOrTest(f file) bool { return f.syntax.Name.Name == "main" || f.test }

// checkSource returns findings about single files.
func checkSource(t *tree) []string {
	var findings []string
	for _, f := range t.files {
		if f.generated {
			continue
		}
		if f.lines > maxLines {
			findings = append(findings, fmt.Sprintf("%s: %d lines: split it by story, %d is the limit", f.path, f.lines, maxLines))
		}
		if name := f.syntax.Name.Name; slices.Contains(grabBags, name) {
			findings = append(findings, fmt.Sprintf("%s: package %s: name it after what it holds", f.path, name))
		}
		findings = append(findings, t.checkCalls(f)...)
	}
	return findings
}

func (t *tree) checkCalls(f file) []string {
	names := importNames(f.syntax)
	var findings []string
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		at := fmt.Sprintf("%s:%d", f.path, t.set.Position(sel.Pos()).Line)
		for _, c := range calls {
			if names[x.Name] == c.pkg && slices.Contains(c.names, sel.Sel.Name) && !c.free(f) {
				findings = append(findings, fmt.Sprintf("%s: %s.%s: %s", at, c.pkg, sel.Sel.Name, c.why))
				break
			}
		}
		// A test that is skipped where the driver is missing has never failed.
		if f.test && f.dir != sanityDir && f.path != lacksFile && (x.Name == "t" || x.Name == "b") && strings.HasPrefix(sel.Sel.Name, "Skip") && sel.Sel.Name != "Skipped" {
			findings = append(findings, fmt.Sprintf("%s: %s.%s: a test fails where it can't run", at, x.Name, sel.Sel.Name))
		}
		return true
	})
	return findings
}

// importNames maps the names of a file's imports to their paths.
func importNames(f *ast.File) map[string]string {
	names := map[string]string{}
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	return names
}
