// Command lint checks what go vet and staticcheck can't know: the arrows between
// the packages of this repository and its rules about source files.
//
//	go run ./test/lint [directory]
//
// It prints one finding a line and exits 1 if there are any.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
)

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	var findings []string
	ctx := context.Background()
	words, err := machineWords(ctx, dir)
	if err == nil {
		findings, err = lint(ctx, dir, words)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lint:", err)
		os.Exit(2)
	}
	for _, f := range findings {
		fmt.Println(f)
	}
	if len(findings) > 0 {
		fmt.Fprintf(os.Stderr, "lint: %d findings\n", len(findings))
		os.Exit(1)
	}
}

// lint returns all findings about the repository in dir, sorted; words must not
// be in any of its files.
func lint(ctx context.Context, dir string, words []string) ([]string, error) {
	t, err := readTree(dir)
	if err != nil {
		return nil, err
	}
	named, err := findWords(ctx, dir, words)
	if err != nil {
		return nil, err
	}
	findings := slices.Concat(checkArrows(t, arrows), checkSource(t), named)
	slices.Sort(findings)
	return slices.Compact(findings), nil
}
