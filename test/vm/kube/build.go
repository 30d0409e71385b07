package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// build compiles all programs of the set into dir.
func (s Set) build(ctx context.Context, src, dir string) error {
	versions, err := s.versions(ctx, src)
	if err != nil {
		return err
	}
	// Packages whose program is named like the last element of their path share one go build, which then compiles them side
	// by side. The others (etcd's package is named after its major version) get one each.
	var together []string
	for _, name := range s.names() {
		if pkg := s.Programs[name]; filepath.Base(pkg) == name {
			together = append(together, pkg)
			continue
		}
		if err := compile(ctx, src, filepath.Join(dir, name), versions[s.Module], s.Programs[name]); err != nil {
			return err
		}
	}
	if len(together) > 0 {
		if err := compile(ctx, src, dir+"/", versions[s.Module], together...); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(versions, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, versionsFile), text, 0o644)
}

func compile(ctx context.Context, src, out, version string, packages ...string) error {
	args := slices.Concat([]string{"go", "build"}, flags(version), []string{"-o", out}, packages)
	// The programs must run in a guest whose C library is another one, so none may link to one.
	_, err := host.Run(ctx, host.Command{Args: args, Dir: src, Env: []string{"CGO_ENABLED=0", "GOWORK=off", "GOFLAGS="}, Nice: true})
	return err
}

// flags are the build's. Kubernetes learns its version from the linker; the other programs have no such variables, which the
// linker does not mind.
func flags(version string) []string {
	const v = "k8s.io/component-base/version."
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	ldflags := fmt.Sprintf("-s -w -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", v, version, v, major, v, minor)
	return []string{"-trimpath", "-mod=readonly", "-buildvcs=false", "-ldflags", ldflags}
}

// versions asks the go command for the versions that go.mod selects: of every program's module, by the program's name, and of
// the set's module, by its path.
func (s Set) versions(ctx context.Context, src string) (map[string]string, error) {
	packages := slices.Sorted(maps.Values(s.Programs))
	args := append([]string{"go", "list", "-mod=readonly", "-f", "{{.ImportPath}} {{.Module.Path}} {{.Module.Version}}"}, packages...)
	out, err := host.Run(ctx, host.Command{Args: args, Dir: src, Env: []string{"CGO_ENABLED=0", "GOWORK=off", "GOFLAGS="}})
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		f := strings.Fields(line)
		if len(f) != 3 {
			return nil, fmt.Errorf("go list: unexpected line %q", line)
		}
		for name, pkg := range s.Programs {
			if pkg == f[0] {
				found[name] = f[2]
			}
		}
		if f[1] == s.Module {
			found[s.Module] = f[2]
		}
	}
	if found[s.Module] == "" {
		return nil, fmt.Errorf("no program comes from module %s", s.Module)
	}
	return found, nil
}
