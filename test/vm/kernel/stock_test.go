package kernel

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPartPackage(t *testing.T) {
	// What a kernel's package depends on, in the layouts of both before and after the split.
	var got []string
	for _, name := range []string{
		"linux-image-6.12.117+deb13-amd64", "kmod", "linux-base", "initramfs-tools",
		"linux-image-7.3.4+deb13-amd64", "linux-base-amd64", "linux-modules-amd64",
		"linux-base-7.3.4+deb13-amd64", "linux-binary-7.3.4+deb13-amd64", "linux-modules-7.3.4+deb13-amd64",
	} {
		if partPackage.MatchString(name) {
			got = append(got, name)
		}
	}
	want := []string{
		"linux-image-6.12.117+deb13-amd64", "linux-image-7.3.4+deb13-amd64",
		"linux-base-7.3.4+deb13-amd64", "linux-binary-7.3.4+deb13-amd64", "linux-modules-7.3.4+deb13-amd64",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
