package mount

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseFlags(t *testing.T) {
	for name, c := range map[string]struct {
		options []string
		set     uintptr
		data    []string
	}{
		"nothing":                               {nil, 0, nil},
		"flags of the mount":                    {[]string{"noatime", "nodev"}, unix.MS_NOATIME | unix.MS_NODEV, nil},
		"several in one element":                {[]string{"ro,nosuid,discard"}, unix.MS_RDONLY | unix.MS_NOSUID, []string{"discard"}},
		"the last one counts":                   {[]string{"ro", "rw"}, 0, nil},
		"options of the file system":            {[]string{"data=ordered", "prjquota"}, 0, []string{"data=ordered", "prjquota"}},
		"an SELinux context is one, commas too": {[]string{`context="system_u:object_r:container_file_t:s0:c1,c2"`, "noexec"}, unix.MS_NOEXEC, []string{`context="system_u:object_r:container_file_t:s0:c1,c2"`}},
		"words of fstab":                        {[]string{"defaults,nofail,_netdev"}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := ParseFlags(c.options)
			if err != nil || f.set != c.set || !slices.Equal(f.data, c.data) {
				t.Errorf("ParseFlags(%q) = %#x %q, %v; want %#x %q", c.options, f.set, f.data, err, c.set, c.data)
			}
		})
	}
}

func TestFlagsThatAreOtherOperations(t *testing.T) {
	for _, o := range []string{"bind", "remount", "noatime,rshared", "loop=/dev/loop0", "X-mount.mkdir", "x-systemd.automount"} {
		if _, err := ParseFlags([]string{o}); err == nil || !strings.Contains(err.Error(), "not for volumes") {
			t.Errorf("%s: %v", o, err)
		}
	}
}

func TestReadOnlyIsSeen(t *testing.T) {
	f, err := ParseFlags([]string{"rw"})
	if err != nil || f.ReadOnly() || !f.WithReadOnly().ReadOnly() {
		t.Errorf("%+v, %v", f, err)
	}
}
