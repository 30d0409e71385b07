package main

import (
	"slices"
	"strings"
)

// withValue are the flags that take the next argument; withoutValue those that do not.
var (
	withValue    = []string{"kernel", "accel", "memory", "disk", "with", "limit", "complaints"}
	withoutValue = []string{"quiet", "update", "all", "help"}
)

// doubleDashes lets flags also be written with one dash, as the go command writes its own, up to the program that they are
// followed by.
func doubleDashes(args []string) []string {
	out := slices.Clone(args)
	for i := 1; i < len(out); i++ {
		a := out[i]
		name, value, hasValue := strings.Cut(strings.TrimLeft(a, "-"), "=")
		known := slices.Contains(withValue, name)
		switch {
		case a == "--" || !strings.HasPrefix(a, "-"):
			return out
		case known || slices.Contains(withoutValue, name):
			out[i] = "--" + name
			if hasValue {
				out[i] += "=" + value
			} else if known {
				i++
			}
		}
	}
	return out
}
