package testexec

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
)

// tree makes a module with a package and a test binary outside of it, under a directory that no guest has.
func tree(t *testing.T) (pkg, binary string) {
	t.Helper()
	top := t.TempDir()
	pkg, binary = filepath.Join(top, "module/pkg/x"), filepath.Join(top, "build/b001/x.test")
	for _, dir := range []string{pkg, filepath.Dir(binary)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{filepath.Join(top, "module/go.mod"): 0o644, binary: 0o755} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	return pkg, binary
}

func TestPlanOfATest(t *testing.T) {
	pkg, binary := tree(t)
	build, mod := filepath.Dir(binary), filepath.Dir(filepath.Dir(pkg))
	cover := t.TempDir()
	s := stage{t.TempDir()}
	p, err := plan(pkg, []string{binary, "-test.timeout=2m0s", "-test.coverprofile=" + build + "/_cover_.out", "-test.outputdir=" + pkg},
		[]string{"HOME=/x", "TEST_A=1", "GOCOVERDIR=" + cover, "CSI_UBLK_CACHE=/c", "UBLK_B=2", "PATH=/bin"}, s, Options{Limit: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if p.dir != pkg || p.args[0] != binary || len(p.args) != 4 {
		t.Errorf("runs %q in %s", p.args, p.dir)
	}
	if want := 2*time.Minute + margin; p.limit != want {
		t.Errorf("limit %s, want %s: the test's own and a margin", p.limit, want)
	}
	wantShares := map[string]bool{build: true, mod: true, cover: true, s.dir: true}
	for _, sh := range p.shares {
		if !wantShares[sh.Host] {
			t.Errorf("shares %s", sh.Host)
		}
		delete(wantShares, sh.Host)
	}
	if len(wantShares) > 0 {
		t.Errorf("does not share %v", wantShares)
	}
	wantEnv := []string{"TEST_A=1", "GOCOVERDIR=" + cover, "UBLK_B=2", "PATH=" + stagedIn + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if diff := cmp.Diff(wantEnv, p.env); diff != "" {
		t.Error(diff)
	}
}

func TestPlanStagesWhatTheGuestWouldHide(t *testing.T) {
	// A program directly in a directory that the guest has itself is taken out of it.
	f, err := os.CreateTemp("/tmp", "plan-*.sh")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	t.Cleanup(func() { os.Remove(f.Name()) })
	s := stage{t.TempDir()}
	p, err := plan("/tmp", []string{f.Name(), "-x"}, nil, s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := program{
		args: []string{"bash", stagedIn + "/" + filepath.Base(f.Name()), "-x"}, dir: "/root", limit: defaultLimit, env: p.env,
		shares: []guest.Share{{Host: s.dir, Guest: stagedIn, ReadOnly: true}},
	}
	if diff := cmp.Diff(want, p, cmp.AllowUnexported(program{})); diff != "" {
		t.Error(diff)
	}
}

func TestPlanTakesMorePrograms(t *testing.T) {
	pkg, binary := tree(t)
	s := stage{t.TempDir()}
	if _, err := plan(pkg, []string{binary}, nil, s, Options{With: map[string]string{"other": binary}}); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(s.dir, "other")); err != nil || st.Mode()&0o111 == 0 {
		t.Errorf("other: %v %v", st, err)
	}
	for _, name := range []string{"a/b", ""} {
		if _, err := plan(pkg, []string{binary}, nil, s, Options{With: map[string]string{name: binary}}); err == nil {
			t.Errorf("took a program named %q", name)
		}
	}
}

func TestSharesDropInnerDirectories(t *testing.T) {
	got, err := shares([]string{"/a/b/c", "/a/bc", "/a/b", "/a/b"})
	if err != nil {
		t.Fatal(err)
	}
	want := []guest.Share{{Host: "/a/b", Guest: "/a/b"}, {Host: "/a/bc", Guest: "/a/bc"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, err := shares([]string{"/tmp"}); err == nil {
		t.Errorf("shares the guest's own /tmp: %v", got)
	}
}

func TestReadFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want testFlags
	}{
		"no test":               {[]string{"-v", "x"}, testFlags{}},
		"no time limit":         {[]string{"-test.timeout=0"}, testFlags{isTest: true}},
		"a profile's directory": {[]string{"--test.cpuprofile=p/cpu.out"}, testFlags{isTest: true, dirs: []string{"/w/p"}}},
		"a directory itself":    {[]string{"-test.gocoverdir=/c/d", "-test.v=true"}, testFlags{isTest: true, dirs: []string{"/c/d"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readFlags("/w", c.args)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(testFlags{})); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := readFlags("/w", []string{"-test.timeout=soon"}); err == nil {
		t.Error("took a time limit that is none")
	}
}
