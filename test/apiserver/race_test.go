//go:build kube && race

package apiserver

// buildFlags make the binary under test as strict as the test.
var buildFlags = []string{"-race"}
