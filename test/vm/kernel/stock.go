package kernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// stockTools is what unpacking needs.
var stockTools = []host.Tool{
	{Program: "depmod", Package: "kmod"}, {Program: "xz", Package: "xz-utils"}, {Program: "dpkg-deb", Package: "dpkg"},
}

// partPackage is the name of a package with a part of a kernel in it. The package of the plain name depends on that of a
// version, which up to Linux 7.2 holds the whole kernel, and depends on
// those with the binary, the modules, and the list of what is built in, from then on.
var partPackage = regexp.MustCompile(`^linux-(image|base|binary|modules)-\d.*`)

// stock unpacks the distribution's kernel package: that of the stable release, or of its backports for Current.
func stock(ctx context.Context, h *host.Host, v Variant) (Kernel, error) {
	from, err := newest(ctx, h, imagePackage, v.pockets())
	if err != nil {
		return Kernel{}, err
	}
	dir, err := h.Entry(ctx, "kernel", stockKey(from), func(ctx context.Context, dir string) error {
		if err := h.Need(ctx, stockTools...); err != nil {
			return err
		}
		return h.Step("kernel: fetching and unpacking "+from.String(), 20*time.Second, func() error { return unpackStock(ctx, h, from, dir) })
	})
	if err != nil {
		return Kernel{}, err
	}
	k := Kernel{Image: filepath.Join(dir, "vmlinuz"), Modules: filepath.Join(dir, "modules")}
	return k, k.read(dir)
}

func stockKey(from origin) string { return host.Key("stock", recipe, from.Name, from.Version) }

func unpackStock(ctx context.Context, h *host.Host, from origin, dir string) error {
	apt, err := h.Apt(ctx, from.suite)
	if err != nil {
		return err
	}
	parts, err := kernelParts(ctx, apt, from.Package)
	if err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	for _, part := range parts {
		deb, err := apt.Download(ctx, part, dir)
		if err != nil {
			return err
		}
		if _, err := host.Run(ctx, host.Command{Args: []string{"dpkg-deb", "-x", deb, tree}}); err != nil {
			return err
		}
		if err := os.Remove(deb); err != nil {
			return err
		}
	}
	var images []string
	for _, pattern := range []string{"boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz"} { // until Linux 7.2, and from then on
		found, _ := filepath.Glob(filepath.Join(tree, pattern))
		images = append(images, found...)
	}
	modules, _ := filepath.Glob(filepath.Join(tree, "usr/lib/modules/*"))
	if len(modules) == 0 {
		modules, _ = filepath.Glob(filepath.Join(tree, "lib/modules/*"))
	}
	if len(images) != 1 || len(modules) != 1 {
		return fmt.Errorf("%v have %d kernels and %d module trees, want one each", parts, len(images), len(modules))
	}
	if err := os.Rename(images[0], filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	release := filepath.Base(modules[0])
	// depmod reads the layout of a root directory.
	layout := filepath.Join(tree, "depmod/lib/modules")
	if err := os.MkdirAll(layout, 0o755); err != nil {
		return err
	}
	if err := os.Rename(modules[0], filepath.Join(layout, release)); err != nil {
		return err
	}
	if _, err := host.Run(ctx, host.Command{Args: []string{host.Tool{Program: "depmod"}.Find(), "-b", filepath.Join(tree, "depmod"), release}}); err != nil {
		return err
	}
	if err := os.Rename(layout, filepath.Join(dir, "modules")); err != nil {
		return err
	}
	for name, text := range map[string]string{"release": release, "source": parts[0].String() + " of " + from.suite} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return os.RemoveAll(tree)
}

// kernelParts follows the dependencies of the package of the plain name to all that hold a part of the kernel.
func kernelParts(ctx context.Context, apt *host.Apt, plain host.Package) ([]host.Package, error) {
	var parts []host.Package
	for open := []host.Package{plain}; len(open) > 0; open = open[1:] {
		depends, err := apt.Depends(ctx, open[0])
		if err != nil {
			return nil, err
		}
		for _, name := range depends {
			if !partPackage.MatchString(name) || slices.ContainsFunc(parts, func(p host.Package) bool { return p.Name == name }) {
				continue
			}
			found, err := apt.Find(ctx, regexp.MustCompile(regexp.QuoteMeta(name)))
			if err != nil {
				return nil, err
			}
			if len(found) == 0 {
				return nil, fmt.Errorf("suite %s lacks %s, which %s needs", apt.Suite, name, open[0])
			}
			part := found[len(found)-1]
			parts, open = append(parts, part), append(open, part)
		}
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("%s of suite %s depends on no kernel", plain, apt.Suite)
	}
	return parts, nil
}
