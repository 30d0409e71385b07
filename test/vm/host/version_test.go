package host

import "testing"

func TestCompareVersions(t *testing.T) {
	for name, c := range map[string]struct {
		older, newer string
	}{
		"numbers, not letters, are compared in runs of digits": {"7.3.9-1", "7.3.10-1"},
		"a backport is older than what it is made of":          {"7.3.4-1~bpo13+1", "7.3.4-1"},
		"a rebuild is newer":                                   {"6.12.107-1", "6.12.107-1+b1"},
		"the revision counts last":                             {"6.12.107-9", "6.12.117-1"},
		"an epoch counts first":                                {"9.0-1", "1:7.2-1"},
		"a pre-release sorts before the release":               {"7.4~rc2-1", "7.4-1"},
		"a longer version is newer":                            {"7.3", "7.3.1"},
		"letters sort before other signs":                      {"1.0a", "1.0+"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := compareVersions(c.older, c.newer); got >= 0 {
				t.Errorf("compareVersions(%s, %s) = %d, want less than 0", c.older, c.newer, got)
			}
			if got := compareVersions(c.newer, c.older); got <= 0 {
				t.Errorf("compareVersions(%s, %s) = %d, want more than 0", c.newer, c.older, got)
			}
		})
	}
	if got := compareVersions("1.00-1", "1.0-1"); got != 0 {
		t.Errorf("leading zeros count: %d", got)
	}
}
