package driver

import (
	"strings"
	"testing"
)

func TestVolumeID(t *testing.T) {
	cases := map[string]struct {
		name  string
		plain bool
	}{
		"what the provisioner sends is kept":        {"pvc-6f1c8a52-1d4e-4c0a-9a30-3d8f6a1f0c11", true},
		"dots inside are kept":                      {"a.b-c", true},
		"upper case is hashed":                      {"A", false},
		"what looks like a hash is hashed":          {"h-1", false},
		"a path is hashed":                          {"../../etc/passwd", false},
		"two dots, which Kubernetes refuses: hash":  {"a..b", false},
		"a label that starts with a dash is hashed": {"a.-b", false},
		"64 bytes are hashed":                       {strings.Repeat("a", 64), false},
		"any Unicode is hashed":                     {"データ", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := VolumeID(c.name)
			if !ValidVolumeID(got) {
				t.Errorf("%q is not a valid id", got)
			}
			if plain := got == c.name; plain != c.plain {
				t.Errorf("VolumeID(%q) = %q", c.name, got)
			}
			if again := VolumeID(c.name); again != got {
				t.Errorf("not stable: %q then %q", got, again)
			}
		})
	}
	for _, bad := range []string{"", ".", "..", "a/b", "-a", ".a", "a..b", "A", strings.Repeat("a", 64), "a\x00"} {
		if ValidVolumeID(bad) {
			t.Errorf("%q passed for a volume id", bad)
		}
	}
}

func FuzzVolumeID(f *testing.F) {
	f.Add("pvc-1", "h-1")
	f.Fuzz(func(t *testing.T, a, b string) {
		if !ValidVolumeID(VolumeID(a)) {
			t.Errorf("VolumeID(%q) = %q is not valid", a, VolumeID(a))
		}
		if a != b && VolumeID(a) == VolumeID(b) {
			t.Errorf("%q and %q share the id %q", a, b, VolumeID(a))
		}
	})
}
