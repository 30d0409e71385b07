package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// usageError marks an error as one of the command line, not of the work.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef returns an error that ends the process with the usage exit code; for
// flags that are wrong alone or together.
func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// markUsageErrors makes every error that cobra finds in flags and arguments of
// cmd and the commands below it a usageError.
func markUsageErrors(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	check := cmd.Args
	if check == nil {
		// Cobra lets a command without Args take any: a forgotten dash would
		// then be ignored in silence.
		check = cobra.NoArgs
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return &usageError{err}
		}
		if err := c.ValidateRequiredFlags(); err != nil {
			return &usageError{err}
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		markUsageErrors(sub)
	}
}

// refuseUnknownCommand is the root's argument check: what is left over is no
// subcommand, most likely a misspelt one.
func refuseUnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("unknown command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown command %q", args[0])
}
