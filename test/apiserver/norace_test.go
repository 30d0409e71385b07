//go:build kube && !race

package apiserver

var buildFlags []string
