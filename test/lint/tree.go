package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tree is the parsed Go source of one module.
type tree struct {
	module string
	files  []file
	set    *token.FileSet
}

type file struct {
	path      string // relative to the module's directory
	dir       string // of path; "." is the module's root
	test      bool
	generated bool
	lines     int
	syntax    *ast.File
	imports   []string
}

// readTree parses all files of the module in dir, whatever their build tags say:
// an arrow must hold on every platform. Modules below it are not part of it.
func readTree(dir string) (*tree, error) {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	t := &tree{module: strings.TrimSpace(strings.TrimPrefix(first, "module")), set: token.NewFileSet()}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != dir && skipDir(path, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		return t.add(dir, path)
	})
	return t, err
}

func skipDir(path, name string) bool {
	if strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "out" {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

func (t *tree) add(dir, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	rel = filepath.ToSlash(rel)
	syntax, err := parser.ParseFile(t.set, rel, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	f := file{
		path: rel, dir: filepath.ToSlash(filepath.Dir(rel)), syntax: syntax,
		test: strings.HasSuffix(rel, "_test.go"), generated: ast.IsGenerated(syntax),
		lines: strings.Count(string(text), "\n"),
	}
	for _, spec := range syntax.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("parse import in %s: %w", rel, err)
		}
		f.imports = append(f.imports, name)
	}
	t.files = append(t.files, f)
	return nil
}

// edges returns which directories and foreign packages each directory imports,
// tests left out.
func (t *tree) edges() map[string][]string {
	edges := map[string][]string{}
	for _, f := range t.files {
		if f.test {
			continue
		}
		for _, name := range f.imports {
			if name == t.module {
				name = "."
			}
			edges[f.dir] = append(edges[f.dir], strings.TrimPrefix(name, t.module+"/"))
		}
	}
	return edges
}
