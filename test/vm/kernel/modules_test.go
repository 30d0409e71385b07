package kernel

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLoadOrder(t *testing.T) {
	const dep = `kernel/a/top.ko.xz: kernel/a/middle.ko.xz kernel/b/base-one.ko.xz
kernel/a/middle.ko.xz: kernel/b/base-one.ko.xz
kernel/b/base-one.ko.xz:
`
	for name, c := range map[string]struct {
		names, want []string
	}{
		"what is needed comes first":        {[]string{"top"}, []string{"kernel/b/base-one.ko.xz", "kernel/a/middle.ko.xz", "kernel/a/top.ko.xz"}},
		"nothing comes twice":               {[]string{"middle", "top"}, []string{"kernel/b/base-one.ko.xz", "kernel/a/middle.ko.xz", "kernel/a/top.ko.xz"}},
		"dashes are underscores":            {[]string{"base_one"}, []string{"kernel/b/base-one.ko.xz"}},
		"what is built in needs no loading": {[]string{"inside", "base-one"}, []string{"kernel/b/base-one.ko.xz"}},
		"an optional one may be missing":    {[]string{"?none", "base-one"}, []string{"kernel/b/base-one.ko.xz"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := loadOrder(dep, "kernel/c/inside.ko\n", c.names)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got, err := loadOrder(dep, "", []string{"none"}); err == nil {
		t.Errorf("a missing module is taken for %v", got)
	}
}

func TestNotGranted(t *testing.T) {
	got := notGranted("# words\nCONFIG_A=y\nCONFIG_B=m\nCONFIG_C=\"x\"\n", "CONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\n")
	if diff := cmp.Diff([]string{"CONFIG_B=m", `CONFIG_C="x"`}, got); diff != "" {
		t.Error(diff)
	}
}
