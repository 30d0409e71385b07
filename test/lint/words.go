package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
)

// machineWords returns what is true on this machine only and must not be written
// into the repository: the hosts that its package managers are set up with, and
// the repository's own place. They are asked for, so this file names none.
func machineWords(ctx context.Context, dir string) ([]string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	var words []string
	if strings.Count(abs, "/") > 1 { // "/src" alone is in too many sound texts
		words = append(words, abs)
	}
	for _, ask := range [][]string{
		{"go", "env", "GOPROXY"},
		{"apt-get", "indextargets", "--format", "$(SITE)"},
		{"npm", "config", "get", "registry"},
	} {
		out, err := exec.CommandContext(ctx, ask[0], ask[1:]...).Output()
		if err != nil {
			if ask[0] == "go" {
				return nil, fmt.Errorf("%s: %w", strings.Join(ask, " "), err)
			}
			continue // a machine without that package manager, or with nothing set
		}
		words = append(words, hosts(string(out))...)
	}
	return words, nil
}

// hosts returns the host names of all URLs in a text, without those of this
// machine's loopback.
func hosts(text string) []string {
	var found []string
	for _, field := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n,|", r) }) {
		u, err := url.Parse(field)
		if err != nil || u.Hostname() == "" || u.Hostname() == "localhost" || strings.HasPrefix(u.Hostname(), "127.") {
			continue
		}
		found = append(found, u.Hostname())
	}
	return found
}

// findWords returns a finding for every line of a tracked or new file of dir that
// has one of the words. go.sum and the like are no exception.
func findWords(ctx context.Context, dir string, words []string) ([]string, error) {
	if len(words) == 0 {
		return nil, nil
	}
	args := []string{"-C", dir, "grep", "--untracked", "--line-number", "-I", "--fixed-strings"}
	for _, w := range words {
		args = append(args, "-e", w)
	}
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil, nil // no line
	}
	if err != nil {
		return nil, fmt.Errorf("git grep: %w", err)
	}
	var findings []string
	for line := range strings.Lines(string(out)) {
		name, rest, _ := strings.Cut(line, ":")
		number, _, _ := strings.Cut(rest, ":")
		findings = append(findings, fmt.Sprintf("%s:%s: names a host or a path of this machine", name, number))
	}
	return findings, nil
}
