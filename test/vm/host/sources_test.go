package host

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const twoArchives = `Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/k.gpg

Types: deb deb-src
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://other.example/
Suites: sid
Components: main
`

func TestPickArchive(t *testing.T) {
	for name, c := range map[string]struct {
		sources  []source
		codename string
		want     string // the archive's address, "" for an error
	}{
		"the release that runs here":                          {parseDeb822(twoArchives), "bookworm", "http://mirror.example/debian"},
		"another release: any archive but that of updates":    {parseDeb822(twoArchives), "forky", "http://mirror.example/debian"},
		"a disabled archive is none":                          {parseDeb822(twoArchives)[1:], "sid", ""},
		"one line, with options":                              {parseOneLine("deb [arch=amd64 signed-by=/k.gpg] http://a.example/debian trixie main\n"), "trixie", "http://a.example/debian"},
		"a commented line is none":                            {parseOneLine("# deb http://a.example/debian trixie main\n"), "trixie", ""},
		"a source line is none":                               {parseOneLine("deb-src http://a.example/debian trixie main\n"), "trixie", ""},
		"an archive without a main component is none":         {parseOneLine("deb http://a.example/x stable nonfree\n"), "trixie", ""},
		"the release is found behind a third party's archive": {parseOneLine("deb http://x.example/x vendor main\ndeb http://a.example/debian trixie main # ours\n"), "trixie", "http://a.example/debian"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := pickArchive(c.sources, c.codename)
			if (err != nil) != (c.want == "") || got.uri != c.want {
				t.Errorf("pickArchive = %q, %v; want %q", got.uri, err, c.want)
			}
		})
	}
}

func TestStanzaKeepsTheKey(t *testing.T) {
	sources := parseOneLine("deb [signed-by=/k.gpg] http://a.example/debian trixie main contrib\n")
	want := "Types: deb\nURIs: http://a.example/debian\nSuites: trixie-backports\nComponents: main\nSigned-By: /k.gpg\n"
	if diff := cmp.Diff(want, sources[0].stanzaFor("trixie-backports")); diff != "" {
		t.Error(diff)
	}
}

func TestStanzas(t *testing.T) {
	got := stanzas("Package: a\nDepends: b (= 1),\n c | d\n\nPackage: e\nno colon here\n\n\n")
	want := []map[string]string{{"package": "a", "depends": "b (= 1),\n c | d"}, {"package": "e"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
