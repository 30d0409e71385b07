package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDoubleDashes(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"a flag with a value":                      {"exec -kernel fixed prog", "exec --kernel fixed prog"},
		"a value after a sign":                     {"exec -kernel=fixed -- prog", "exec --kernel=fixed -- prog"},
		"two dashes stay":                          {"exec --with a=b prog", "exec --with a=b prog"},
		"the program's flags are its own":          {"exec -memory 512 prog -limit 3 -kernel x", "exec --memory 512 prog -limit 3 -kernel x"},
		"after two dashes nothing is touched":      {"exec -- -kernel", "exec -- -kernel"},
		"a flag without a value takes no argument": {"kernel -update lts", "kernel --update lts"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(strings.Fields(c.want), doubleDashes(strings.Fields(c.in))); diff != "" {
				t.Error(diff)
			}
		})
	}
}
