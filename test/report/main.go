// Command report runs the tiers of the tests, keeps what they said and counts.
//
//	report run [-o directory] TIER -- COMMAND...
//	report sum [-o directory] [TIER...]
//	report conformance JUNIT.xml...
//
// run executes a command that prints `go test -json`, shows it for people, and
// writes the tier's result to DIRECTORY/TIER.json; it exits as the tier did. sum
// prints a table of the named tiers (else of all that ran) with what failed, and
// as the last line "N passed, N failed, N skipped"; it exits 1 if something failed,
// a tier ran nothing, or a named tier has no result. conformance prints, in Markdown,
// what became of Kubernetes' storage tests.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	ok, err := command(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func command(args []string) (ok bool, err error) {
	if len(args) == 0 {
		return false, fmt.Errorf("name a command: run, sum or conformance")
	}
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	dir := flags.String("o", "out/test", "directory of the results")
	if err := flags.Parse(args[1:]); err != nil {
		return false, err
	}
	switch rest := flags.Args(); {
	case args[0] == "run" && len(rest) > 2 && rest[1] == "--":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := os.MkdirAll(*dir, 0o755); err != nil {
			return false, err
		}
		result, err := runTier(ctx, *dir, rest[0], rest[2:], os.Stdout)
		if err != nil {
			return false, err
		}
		return result.ok(), result.save(*dir, rest[0])
	case args[0] == "sum":
		if len(rest) == 0 {
			rest = ran(*dir)
		}
		return sum(os.Stdout, *dir, rest), nil
	case args[0] == "conformance" && len(rest) > 0:
		return conformance(os.Stdout, rest)
	}
	return false, fmt.Errorf("unknown command line %q; see the package's documentation", args)
}

// ran returns the tiers with a result, in the order of their names.
func ran(dir string) []string {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".json")
	}
	return files
}
