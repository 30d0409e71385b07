package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"version prints to stdout":                 {args: []string{"version"}, stdout: "csi-ublk "},
		"--version prints to stdout":               {args: []string{"--version"}, stdout: buildVersion()},
		"help is no error":                         {args: []string{"--help"}, stdout: "Available Commands:"},
		"a shell completion can be had":            {args: []string{"completion", "bash"}, stdout: "csi-ublk"},
		"no command is a usage error with help":    {code: 2, stderr: "name a command"},
		"an unknown command is named":              {args: []string{"fly"}, code: 2, stderr: `unknown command "fly"`},
		"a misspelt command gets a suggestion":     {args: []string{"versoin"}, code: 2, stderr: "did you mean version?"},
		"an unknown flag is a usage error":         {args: []string{"version", "--fast"}, code: 2, stderr: "unknown flag: --fast"},
		"a stray argument is a usage error":        {args: []string{"version", "now"}, code: 2, stderr: `"now"`},
		"a wrong log level names the levels":       {args: []string{"version", "--log-level=loud"}, code: 2, stderr: "debug, info, warn or error"},
		"a wrong log format names the formats":     {args: []string{"version", "--log-format=xml"}, code: 2, stderr: "json or text"},
		"a bench needs to be told what to do":      {args: []string{"bench"}, code: 2, stderr: "name what to do"},
		"an unknown format is named":               {args: []string{"bench", "churn", "-o", "yaml"}, code: 2, stderr: "text, json, markdown"},
		"a report needs files":                     {args: []string{"bench", "report"}, code: 2, stderr: "name the files"},
		"a report that is not there is named":      {args: []string{"bench", "report", "gone.json"}, code: 1, stderr: "gone.json"},
		"an unknown table is named":                {args: []string{"bench", "churn", "--tables", "fly"}, code: 1, stderr: `table "fly"`},
		"an error says which help to ask for next": {args: []string{"version", "--fast"}, code: 2, stderr: "Run 'csi-ublk version --help'"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(c.args, &stdout, &stderr); code != c.code {
				t.Errorf("exit code %d, want %d; stderr: %s", code, c.code, &stderr)
			}
			if !strings.Contains(stdout.String(), c.stdout) {
				t.Errorf("stdout %q lacks %q", &stdout, c.stdout)
			}
			if !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("stderr %q lacks %q", &stderr, c.stderr)
			}
		})
	}
}
