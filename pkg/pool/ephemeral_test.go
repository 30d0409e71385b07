package pool

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEphemeralVolumesAreKnownByTheirMark(t *testing.T) {
	state := t.TempDir()
	p := openPool(t, state, nil)
	mark := Ephemeral{Target: "/pods/a/mount", BootID: "now"}
	if err := errors.Join(p.CreateEphemeral("e", 8*mib, mark), p.CreateEphemeral("e", 8*mib, mark), p.Create("v", 4*mib)); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"another target":                p.CreateEphemeral("e", 8*mib, Ephemeral{Target: "/pods/b/mount", BootID: "now"}),
		"another boot":                  p.CreateEphemeral("e", 8*mib, Ephemeral{Target: "/pods/a/mount", BootID: "before"}),
		"another size":                  p.CreateEphemeral("e", 4*mib, mark),
		"ephemeral, and is not":         p.CreateEphemeral("v", 4*mib, mark),
		"not ephemeral, and it is":      p.Create("e", 8*mib),
		"not ephemeral, of other bytes": p.Create("e", 4*mib),
	} {
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v, want that it exists", name, err)
		}
	}
	// The next process knows the same.
	for round, p := range []*Pool{p, openPool(t, state, nil)} {
		if got, ok := p.Ephemeral("e"); !ok || got != mark {
			t.Errorf("pool %d: the mark is %+v, %t", round, got, ok)
		}
		if _, ok := p.Ephemeral("v"); ok || len(p.Ephemerals()) != 1 {
			t.Errorf("pool %d: ephemeral are %v", round, p.Ephemerals())
		}
		if u := usage(t, p); u.PromisedBytes != 12*mib || u.EphemeralBytes != 8*mib {
			t.Errorf("pool %d: usage %+v", round, u)
		}
	}
	if err := errors.Join(p.Delete("e"), p.Delete("e")); err != nil {
		t.Fatal(err)
	}
	if u := usage(t, p); u.PromisedBytes != 4*mib || u.EphemeralBytes != 0 || len(p.Ephemerals()) != 0 {
		t.Errorf("after its end: usage %+v, %v", u, p.Ephemerals())
	}
	if err := p.CreateEphemeral("e", 80*mib, mark); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more than there is: %v", err)
	}
	if u := usage(t, p); u.EphemeralBytes != 0 {
		t.Errorf("one that was refused counts: %+v", u)
	}
}

// A power cut may leave a mark of any content.
func TestADamagedMarkIsOfNoBoot(t *testing.T) {
	state := t.TempDir()
	p := openPool(t, state, nil)
	if err := p.CreateEphemeral("e", mib, Ephemeral{Target: "/t", BootID: "now"}); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(p.VolumePath("e"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fsetxattr(int(f.Fd()), ephemeralAttr, []byte{0, 1, 2}, 0); err != nil {
		t.Fatal(err)
	}
	if mark, ok := openPool(t, state, nil).Ephemeral("e"); !ok || mark != (Ephemeral{}) {
		t.Errorf("the mark is %+v, %t", mark, ok)
	}
}
