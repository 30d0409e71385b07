// Package examples holds the manifests that the documents show, for the tests that apply
// them.
package examples

import "embed"

// Files are the manifests, by their names in this directory.
//
//go:embed *.yaml
var Files embed.FS
