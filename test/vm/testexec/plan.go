package testexec

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
)

// program is what runs in the guest, and the host directories it sees. They have the same path there, so that arguments and
// test data need no translation.
type program struct {
	args   []string
	dir    string
	env    []string
	shares []guest.Share
	limit  time.Duration // 0: none
}

const (
	defaultLimit = 10 * time.Minute
	// margin is what a Go test has to report its own time-out before the rig ends it. go test itself kills after a minute.
	margin = 30 * time.Second
)

// ownedByGuest are directories that the guest has itself: a share would hide what is in them.
var ownedByGuest = []string{
	"/", "/bin", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys",
	"/tmp", "/usr", "/usr/bin", "/usr/local", "/usr/local/bin", "/usr/sbin", "/var", "/var/lib", "/var/tmp", "/dev/shm",
}

// plan turns a call on the host into a program in the guest.
func plan(cwd string, args, environ []string, s stage, o Options) (program, error) {
	if len(args) == 0 {
		return program{}, fmt.Errorf("no program to run")
	}
	p := program{dir: cwd, env: passedOn(environ), limit: o.Limit}
	if p.limit == 0 {
		p.limit = defaultLimit
	}
	binary, err := filepath.Abs(args[0])
	if err != nil {
		return program{}, err
	}
	st, err := os.Stat(binary)
	if err != nil {
		return program{}, fmt.Errorf("program: %w", err)
	}
	p.args = append([]string{binary}, args[1:]...)
	dirs := []string{}
	if dir := moduleRoot(cwd); dir != "" {
		dirs = append(dirs, dir)
	} else if slices.Contains(ownedByGuest, cwd) {
		p.dir = "/root"
	} else {
		dirs = append(dirs, cwd)
	}
	if dir := filepath.Dir(binary); !slices.Contains(ownedByGuest, dir) {
		dirs = append(dirs, dir)
	} else {
		name := filepath.Base(binary)
		if err := s.put(name, binary); err != nil {
			return program{}, err
		}
		p.args[0] = filepath.Join(stagedIn, name)
	}
	if st.Mode()&0o111 == 0 {
		p.args = append([]string{"bash"}, p.args...) // A script that is not marked as a program.
	}
	flags, err := readFlags(cwd, args[1:])
	if err != nil {
		return program{}, err
	}
	dirs = append(dirs, flags.dirs...)
	if flags.isTest {
		p.limit = 0
		if flags.timeout > 0 {
			p.limit = flags.timeout + margin
		}
	}
	for _, v := range environ {
		if dir, ok := strings.CutPrefix(v, "GOCOVERDIR="); ok && dir != "" {
			dirs = append(dirs, absolute(cwd, dir))
		}
	}
	for _, name := range names(o.With) {
		if err := s.put(name, o.With[name]); err != nil {
			return program{}, err
		}
	}
	p.env = append(p.env, "PATH="+stagedIn+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	p.shares, err = shares(dirs)
	p.shares = append(p.shares, guest.Share{Host: s.dir, Guest: stagedIn, ReadOnly: true})
	return p, err
}

// shares makes the list of directories to share, outer ones before and in place of inner ones.
func shares(dirs []string) ([]guest.Share, error) {
	slices.Sort(dirs)
	var out []guest.Share
	for _, d := range dirs {
		if slices.ContainsFunc(out, func(s guest.Share) bool { return s.Host == d || strings.HasPrefix(d, s.Host+"/") }) {
			continue
		}
		if slices.Contains(ownedByGuest, d) {
			return nil, fmt.Errorf("directory %s can't be shared with the guest, which has its own: use one below it", d)
		}
		out = append(out, guest.Share{Host: d, Guest: d})
	}
	return out, nil
}

// testFlags is what the arguments of a test binary say to the rig.
type testFlags struct {
	isTest  bool
	timeout time.Duration
	dirs    []string // that the test writes to
}

// written are the flags of a test binary that name files or directories it writes.
var written = map[string]bool{ // true: a directory
	"coverprofile": false, "cpuprofile": false, "memprofile": false, "blockprofile": false, "mutexprofile": false, "trace": false,
	"testlogfile": false, "outputdir": true, "gocoverdir": true, "fuzzcachedir": true,
}

// readFlags reads the -test.NAME=VALUE flags, the form that go test uses, up to the first argument that is none.
func readFlags(cwd string, args []string) (testFlags, error) {
	var f testFlags
	for _, a := range args {
		name, ok := strings.CutPrefix(strings.TrimPrefix(a, "-"), "-test.")
		if !ok {
			name, ok = strings.CutPrefix(a, "-test.")
		}
		if !ok {
			continue
		}
		f.isTest = true
		name, value, _ := strings.Cut(name, "=")
		if name == "timeout" {
			d, err := time.ParseDuration(value)
			if err != nil {
				return f, fmt.Errorf("flag -test.timeout: %w", err)
			}
			f.timeout = d
		}
		isDir, ok := written[name]
		if !ok || value == "" {
			continue
		}
		path := absolute(cwd, value)
		if !isDir {
			path = filepath.Dir(path)
		}
		f.dirs = append(f.dirs, path)
	}
	return f, nil
}

// passed are the beginnings of the environment variables that the guest gets.
var passed = []string{"TEST_", "CSI_UBLK_", "UBLK_", "GOCOVERDIR=", "GODEBUG=", "GOTRACEBACK=", "GOMAXPROCS=", "GORACE="}

// passedOn picks what the guest gets of an environment. The cache's place is the host's business.
func passedOn(environ []string) []string {
	var out []string
	for _, v := range environ {
		if strings.HasPrefix(v, "CSI_UBLK_CACHE=") || strings.HasPrefix(v, "CSI_UBLK_APT_SOURCES=") {
			continue
		}
		if slices.ContainsFunc(passed, func(p string) bool { return strings.HasPrefix(v, p) }) {
			out = append(out, v)
		}
	}
	return out
}

func absolute(cwd, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(cwd, path)
}

// moduleRoot is the directory of the module that dir is in, "" if it is in none.
func moduleRoot(dir string) string {
	for !slices.Contains(ownedByGuest, dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return ""
}
