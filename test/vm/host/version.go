package host

import (
	"cmp"
	"strings"
)

// compareVersions orders Debian versions as dpkg does: epoch, upstream version, revision; in each, runs of non-digits and
// numbers in turn, where "~" sorts before the end and letters before other signs (deb-version(7)).
func compareVersions(a, b string) int {
	ae, au, ar := splitVersion(a)
	be, bu, br := splitVersion(b)
	return cmp.Or(comparePart(ae, be), comparePart(au, bu), comparePart(ar, br))
}

func splitVersion(v string) (epoch, upstream, revision string) {
	epoch = "0"
	if e, rest, ok := strings.Cut(v, ":"); ok {
		epoch, v = e, rest
	}
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		return epoch, v[:i], v[i+1:]
	}
	return epoch, v, ""
}

func comparePart(a, b string) int {
	for a != "" || b != "" {
		var x, y string
		x, a = span(a, false)
		y, b = span(b, false)
		for i := range max(len(x), len(y)) {
			if c := cmp.Compare(weight(x, i), weight(y, i)); c != 0 {
				return c
			}
		}
		x, a = span(a, true)
		y, b = span(b, true)
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); c != 0 {
			return c
		}
	}
	return 0
}

// span cuts the leading run of digits (or of anything else) off s.
func span(s string, digits bool) (head, rest string) {
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9') == digits {
		i++
	}
	return s[:i], s[i:]
}

// weight is the rank of the sign at i: "~" below the end of the text, then letters, then the rest.
func weight(s string, i int) int {
	switch {
	case i >= len(s):
		return 0
	case s[i] == '~':
		return -1
	case s[i] >= 'A' && s[i] <= 'Z' || s[i] >= 'a' && s[i] <= 'z':
		return int(s[i])
	default:
		return int(s[i]) + 256
	}
}
