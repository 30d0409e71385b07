package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// source is one archive of the machine's own apt configuration.
type source struct {
	uri, signedBy      string
	suites, components []string
}

// parseDeb822 reads the stanzas of a .sources file; the disabled ones and those without binary packages are left out.
func parseDeb822(text string) []source {
	var out []source
	for _, stanza := range stanzas(text) {
		if stanza["enabled"] == "no" || !slices.Contains(strings.Fields(stanza["types"]), "deb") {
			continue
		}
		for _, uri := range strings.Fields(stanza["uris"]) {
			out = append(out, source{
				uri: uri, signedBy: stanza["signed-by"],
				suites: strings.Fields(stanza["suites"]), components: strings.Fields(stanza["components"]),
			})
		}
	}
	return out
}

// stanzas reads paragraphs of "Field: value" lines; field names become lower case, continuation lines keep their shape.
func stanzas(text string) []map[string]string {
	var out []map[string]string
	cur, field := map[string]string{}, ""
	flush := func() {
		if len(cur) > 0 {
			out = append(out, cur)
		}
		cur, field = map[string]string{}, ""
	}
	sc := bufio.NewScanner(strings.NewReader(text))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			if field != "" {
				cur[field] += "\n" + line
			}
		default:
			name, value, ok := strings.Cut(line, ":")
			if !ok {
				continue
			}
			field = strings.ToLower(name)
			cur[field] = strings.TrimSpace(value)
		}
	}
	flush()
	return out
}

// parseOneLine reads the classic format: deb [options] uri suite component...
func parseOneLine(text string) []source {
	var out []source
	for _, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '\t' {
			continue
		}
		var s source
		rest = strings.TrimSpace(rest)
		if options, after, ok := strings.Cut(rest, "]"); ok && strings.HasPrefix(options, "[") {
			for _, o := range strings.Fields(options[1:]) {
				if v, ok := strings.CutPrefix(o, "signed-by="); ok {
					s.signedBy = v
				}
			}
			rest = after
		}
		f := strings.Fields(rest)
		if len(f) < 3 {
			continue
		}
		s.uri, s.suites, s.components = f[0], f[1:2], f[2:]
		out = append(out, s)
	}
	return out
}

// pickArchive chooses the distribution's main archive: the one that carries the release that runs here, else the first with a
// main component that is no archive of updates.
func pickArchive(sources []source, codename string) (source, error) {
	var fallback *source
	for i, s := range sources {
		if !slices.Contains(s.components, "main") {
			continue
		}
		for _, suite := range s.suites {
			if suite == codename || suite == "stable" || suite == "testing" || suite == "unstable" {
				return s, nil
			}
			if fallback == nil && !strings.ContainsAny(suite, "-/") {
				fallback = &sources[i]
			}
		}
	}
	if fallback != nil {
		return *fallback, nil
	}
	return source{}, errors.New("no Debian archive with a main component among this machine's apt sources; " +
		"name a .sources file that has one in CSI_UBLK_APT_SOURCES")
}

// machineSources reads the machine's apt sources, or those in the file of CSI_UBLK_APT_SOURCES.
func machineSources() ([]source, error) {
	files := []string{os.Getenv("CSI_UBLK_APT_SOURCES")}
	if files[0] == "" {
		files, _ = filepath.Glob("/etc/apt/sources.list.d/*")
		sort.Strings(files)
		files = append(files, "/etc/apt/sources.list")
	}
	var out []source
	for _, path := range files {
		b, err := os.ReadFile(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("read apt sources: %w", err)
		}
		switch filepath.Ext(path) {
		case ".list":
			out = append(out, parseOneLine(string(b))...)
		case ".sources":
			out = append(out, parseDeb822(string(b))...)
		}
	}
	return out, nil
}

// osRelease returns one value of /etc/os-release, "" if it has none.
func osRelease(name string) string {
	b, _ := os.ReadFile("/etc/os-release")
	for _, line := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, name+"="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

// stanzaFor writes the archive as a .sources stanza for one suite of it.
func (s source) stanzaFor(suite string) string {
	out := fmt.Sprintf("Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n", s.uri, suite)
	if s.signedBy != "" {
		out += "Signed-By: " + s.signedBy + "\n"
	}
	return out
}
