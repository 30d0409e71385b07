package kernel

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

//go:embed uml.config
var umlConfig string

// recipe changes when the way of building does, so that older cache entries are not taken for new ones.
const recipe = "1"

// umlTools is what the build needs.
var umlTools = []host.Tool{
	{Program: "gcc", Package: "gcc"}, {Program: "make", Package: "make"}, {Program: "ld", Package: "binutils"},
	{Program: "flex", Package: "flex"}, {Program: "bison", Package: "bison"}, {Program: "bc", Package: "bc"},
	{Program: "xz", Package: "xz-utils"}, {Program: "depmod", Package: "kmod"}, {Program: "python3", Package: "python3-minimal"},
	{Program: "/usr/include/stdio.h", Package: "libc6-dev"}, {Program: "dpkg-deb", Package: "dpkg"},
}

// UMLTools lists what User Mode Linux kernels need of the host.
func UMLTools() []host.Tool { return umlTools }

// userMode builds the current kernel as User Mode Linux, with its ublk driver as it is and fixed: one cache entry.
func userMode(ctx context.Context, h *host.Host, v Variant) (Kernel, error) {
	from, err := newest(ctx, h, sourcePackage, v.pockets())
	if err != nil {
		return Kernel{}, err
	}
	dir, err := h.Entry(ctx, "kernel", umlKey(from), func(ctx context.Context, dir string) error {
		if err := h.Need(ctx, umlTools...); err != nil {
			return err
		}
		b := umlBuild{h: h, from: from, dir: dir}
		return b.all(ctx)
	})
	if err != nil {
		return Kernel{}, err
	}
	k := Kernel{Image: filepath.Join(dir, "linux"), Modules: filepath.Join(dir, "modules")}
	if err := k.read(dir); err != nil {
		return Kernel{}, err
	}
	if v == Fixed {
		if b, err := os.ReadFile(filepath.Join(dir, "fixed.error")); err == nil {
			return Kernel{}, errors.New(string(b))
		}
		if b, err := os.ReadFile(filepath.Join(dir, "fixed.note")); err == nil {
			k.Note = string(b)
		}
		k.Modules = filepath.Join(dir, "modules.fixed")
	}
	return k, nil
}

func umlKey(from origin) string { return host.Key("uml", recipe, from.Name, from.Version, umlConfig) }

// umlBuild is one build, in the cache entry's directory.
type umlBuild struct {
	h    *host.Host
	from origin
	dir  string
}

func (b umlBuild) path(name string) string { return filepath.Join(b.dir, name) }

func (b umlBuild) all(ctx context.Context) error {
	steps := []struct {
		what  string
		usual time.Duration
		do    func(context.Context) error
	}{
		{"kernel: fetching and unpacking " + b.from.String(), 30 * time.Second, b.unpack},
		{"kernel: configuring", 15 * time.Second, b.configure},
		{"kernel: compiling", 6 * time.Minute, b.compile},
		{"kernel: the fixed driver", 5 * time.Second, b.buildFixed},
	}
	for _, s := range steps {
		if err := b.h.Step(s.what, s.usual, func() error { return s.do(ctx) }); err != nil {
			return err
		}
	}
	if err := os.WriteFile(b.path("source"), []byte(b.from.String()), 0o644); err != nil {
		return err
	}
	// The trees are 2 GB, and a kernel of another version shares nothing with them.
	return errors.Join(os.RemoveAll(b.path("src")), os.RemoveAll(b.path("build")), os.RemoveAll(b.path("drv")))
}

// notUnpacked are files that are large in sum and that no build for ARCH=um reads. Their Kconfig files and Makefiles are read.
var notUnpacked = []string{
	"*/Documentation/*.rst", "*/Documentation/*.yaml", "*/tools/testing/*", "*/tools/perf/*", "*.dts", "*.dtsi",
	"*/drivers/gpu/*.[ch]", "*/drivers/media/*.[ch]", "*/drivers/net/ethernet/*.[ch]", "*/drivers/net/wireless/*.[ch]", "*/sound/*.[ch]",
}

func (b umlBuild) unpack(ctx context.Context) error {
	apt, err := b.h.Apt(ctx, b.from.suite)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.path("src"), 0o755); err != nil {
		return err
	}
	deb, err := apt.Download(ctx, b.from.Package, b.dir)
	if err != nil {
		return err
	}
	var exclude strings.Builder
	for _, pattern := range notUnpacked {
		fmt.Fprintf(&exclude, " --exclude='%s'", pattern)
	}
	script := `set -o pipefail
dpkg-deb --fsys-tarfile "$1" | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' | xz -dc -T0 |
tar -x -C "$2" --strip-components=1` + exclude.String()
	if _, err := host.Run(ctx, host.Command{Args: []string{"bash", "-c", script, "unpack", deb, b.path("src")}}); err != nil {
		return err
	}
	return os.Remove(deb)
}

// make runs make on the tree with a build directory beside it.
func (b umlBuild) make(ctx context.Context, args ...string) (string, error) {
	return host.Run(ctx, host.Command{
		Args: append([]string{"make", "-s", "-C", b.path("src"), "ARCH=um", "O=" + b.path("build")}, args...), Nice: true, Contained: true,
	})
}

func (b umlBuild) configure(ctx context.Context) error {
	if err := os.MkdirAll(b.path("build"), 0o755); err != nil {
		return err
	}
	wanted := b.path("config.wanted")
	if err := os.WriteFile(wanted, []byte(umlConfig), 0o644); err != nil {
		return err
	}
	if _, err := b.make(ctx, "KCONFIG_ALLCONFIG="+wanted, "allnoconfig"); err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(b.path("build"), ".config"))
	if err != nil {
		return err
	}
	// An option that this kernel does not know any more must be seen here, not as a driver that a test misses.
	if lost := notGranted(umlConfig, string(got)); len(lost) > 0 {
		return fmt.Errorf("this kernel does not grant %s", strings.Join(lost, " "))
	}
	return os.WriteFile(b.path("config"), got, 0o644)
}

// notGranted returns the settings of wanted that are not in the configuration got.
func notGranted(wanted, got string) []string {
	have := map[string]bool{}
	for _, line := range strings.Split(got, "\n") {
		have[line] = true
	}
	var lost []string
	for _, line := range strings.Split(wanted, "\n") {
		if strings.HasPrefix(line, "CONFIG_") && !have[line] {
			lost = append(lost, line)
		}
	}
	return lost
}

func (b umlBuild) compile(ctx context.Context) error {
	if _, err := b.make(ctx, "-j"+strconv.Itoa(runtime.NumCPU()), "linux", "modules"); err != nil {
		return err
	}
	if _, err := b.make(ctx, "INSTALL_MOD_PATH="+b.path("install"), "modules_install"); err != nil {
		return err
	}
	if _, err := host.Run(ctx, host.Command{Args: []string{"strip", "-g", "-o", b.path("linux"), filepath.Join(b.path("build"), "linux")}}); err != nil {
		return err
	}
	release, err := os.ReadFile(filepath.Join(b.path("build"), "include/config/kernel.release"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.path("release"), release, 0o644); err != nil {
		return err
	}
	// The link into the build directory would dangle.
	_ = os.Remove(filepath.Join(b.path("install/lib/modules"), strings.TrimSpace(string(release)), "build"))
	if err := os.Rename(b.path("install/lib/modules"), b.path("modules")); err != nil {
		return err
	}
	return os.RemoveAll(b.path("install"))
}

// buildFixed builds the driver a second time, with the fix, and lays a module tree with it beside the first. That this can't
// be done is the answer for the variant Fixed alone.
func (b umlBuild) buildFixed(ctx context.Context) error {
	const driver = "drivers/block/ublk_drv.c"
	source, err := os.ReadFile(filepath.Join(b.path("src"), driver))
	if err != nil {
		return err
	}
	fixed, err := unlockBeforeRelease(string(source))
	switch {
	case errors.Is(err, errAlreadyFixed):
		fixed = string(source)
		if err := os.WriteFile(b.path("fixed.note"), []byte(err.Error()), 0o644); err != nil {
			return err
		}
	case err != nil:
		b.h.Say("kernel: the fix does not apply: %v", err)
		return os.WriteFile(b.path("fixed.error"), []byte("the fix does not apply: "+err.Error()), 0o644)
	}
	if err := os.MkdirAll(b.path("drv"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.path("drv"), "ublk_drv.c"), []byte(fixed), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.path("drv"), "Makefile"), []byte("obj-m := ublk_drv.o\n"), 0o644); err != nil {
		return err
	}
	if _, err := b.make(ctx, "M="+b.path("drv"), "modules"); err != nil {
		return err
	}
	// Hard links: only the driver differs. The new file replaces the link, not the content behind it.
	if _, err := host.Run(ctx, host.Command{Args: []string{"cp", "-al", b.path("modules"), b.path("modules.fixed")}}); err != nil {
		return err
	}
	release, err := os.ReadFile(b.path("release"))
	if err != nil {
		return err
	}
	target := filepath.Join(b.path("modules.fixed"), strings.TrimSpace(string(release)), "kernel/drivers/block/ublk_drv.ko")
	if err := os.Remove(target); err != nil {
		return fmt.Errorf("replace the driver: %w", err)
	}
	return os.Rename(filepath.Join(b.path("drv"), "ublk_drv.ko"), target)
}
