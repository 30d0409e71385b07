package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// listsMaxAge is how long an answer of the archive is used before it is asked again.
const listsMaxAge = 12 * time.Hour

// Apt reads one suite of the machine's Debian archive with lists and a cache of the rig's own: the system's apt is neither
// changed nor locked by it.
type Apt struct {
	// Suite is the name that was asked for, Codename the release it stands for.
	Suite, Codename string
	h               *Host
	dir             string
}

// Package is a package that the archive offers.
type Package struct{ Name, Version string }

func (p Package) String() string { return p.Name + " " + p.Version }

// Apt opens a suite ("stable", "stable-backports", a codename). The archive's lists are fetched if they are older than half a
// day; if that fails and there are older ones, those are used and the progress says so.
func (h *Host) Apt(ctx context.Context, suite string) (*Apt, error) {
	a := &Apt{Suite: suite, h: h, dir: filepath.Join(h.Cache, "apt", suite)}
	unlock, err := h.Lock(ctx, "apt."+suite)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("create apt directories: %w", err)
		}
	}
	all, err := machineSources()
	if err != nil {
		return nil, err
	}
	archive, err := pickArchive(all, osRelease("VERSION_CODENAME"))
	if err != nil {
		return nil, err
	}
	stanza := archive.stanzaFor(suite)
	old, _ := os.ReadFile(a.Sources())
	if string(old) != stanza {
		if err := os.WriteFile(a.Sources(), []byte(stanza), 0o644); err != nil {
			return nil, fmt.Errorf("write apt sources: %w", err)
		}
	}
	a.Codename = a.codename()
	stamp := "apt." + suite
	if _, fresh := h.Noted(stamp, listsMaxAge); !fresh || string(old) != stanza || a.Codename == "" {
		_, err := Run(ctx, Command{Args: append(append([]string{"apt-get"}, a.options()...), "update")})
		switch {
		case err == nil:
			_ = h.Note(stamp, "") // Without it the lists are only fetched once more than needed.
		case ctx.Err() != nil || a.Codename == "":
			return nil, fmt.Errorf("fetch lists of suite %s: %w", suite, err)
		default:
			h.Say("the archive's suite %s does not answer, older lists are used", suite)
		}
		a.Codename = a.codename()
	}
	if a.Codename == "" {
		return nil, fmt.Errorf("fetch lists of suite %s: the archive has no such suite", suite)
	}
	return a, nil
}

// Sources is a .sources file for this suite, for tools that bring an apt of their own.
func (a *Apt) Sources() string { return filepath.Join(a.dir, "src.sources") }

func (a *Apt) options() []string {
	return []string{
		"-q", "-o", "Dir::State::Lists=" + a.dir + "/lists", "-o", "Dir::Cache=" + a.dir + "/cache",
		"-o", "Dir::Etc::SourceParts=/dev/null", "-o", "Dir::Etc::SourceList=" + a.Sources(),
		"-o", "Dir::Etc::Preferences=/dev/null", "-o", "Dir::Etc::PreferencesParts=/dev/null",
		"-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none", "-o", "Acquire::Retries=3",
	}
}

var codenameLine = regexp.MustCompile(`(?m)^Codename: (\S+)$`)

// codename reads the suite's release file among the fetched lists; "" if there is none.
func (a *Apt) codename() string {
	for _, pattern := range []string{"*_InRelease", "*_Release"} {
		files, _ := filepath.Glob(filepath.Join(a.dir, "lists", pattern))
		for _, f := range files {
			b, err := os.ReadFile(f)
			if m := codenameLine.FindSubmatch(b); err == nil && m != nil {
				return string(m[1])
			}
		}
	}
	return ""
}

// Find returns the packages whose whole name matches the regular expression, the newest version last.
func (a *Apt) Find(ctx context.Context, name *regexp.Regexp) ([]Package, error) {
	out, err := Run(ctx, Command{Args: append(append([]string{"apt-cache"}, a.options()...), "dumpavail")})
	if err != nil {
		return nil, fmt.Errorf("search suite %s: %w", a.Suite, err)
	}
	var found []Package
	for _, s := range stanzas(out) {
		p := Package{Name: s["package"], Version: s["version"]}
		if m := name.FindString(p.Name); m == p.Name && m != "" && !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(x, y Package) int { return compareVersions(x.Version, y.Version) })
	return found, nil
}

// Depends returns what the package depends on, alternatives and version limits removed.
func (a *Apt) Depends(ctx context.Context, p Package) ([]string, error) {
	out, err := Run(ctx, Command{Args: append(append([]string{"apt-cache"}, a.options()...), "show", p.Name+"="+p.Version)})
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", p, err)
	}
	var names []string
	for _, s := range stanzas(out) {
		for _, d := range strings.Split(s["depends"], ",") {
			if f := strings.Fields(d); len(f) > 0 {
				names = append(names, f[0])
			}
		}
	}
	return names, nil
}

// Download fetches the package's archive file into dir and returns its path.
func (a *Apt) Download(ctx context.Context, p Package, dir string) (string, error) {
	unlock, err := a.h.Lock(ctx, "apt."+a.Suite)
	if err != nil {
		return "", err
	}
	defer unlock()
	args := append(append([]string{"apt-get"}, a.options()...), "download", p.Name+"="+p.Version)
	if _, err := Run(ctx, Command{Args: args, Dir: dir}); err != nil {
		return "", fmt.Errorf("download %s: %w", p, err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, p.Name+"_*.deb"))
	if len(files) != 1 {
		return "", fmt.Errorf("download %s: %d files in %s, want 1", p, len(files), dir)
	}
	return files[0], nil
}
