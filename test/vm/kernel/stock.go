package kernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// stockTools is what unpacking needs.
var stockTools = []host.Tool{
	{Program: "depmod", Package: "kmod"}, {Program: "xz", Package: "xz-utils"}, {Program: "dpkg-deb", Package: "dpkg"},
}

// realImage is the name of the package with a kernel in it, which the package of the plain name depends on.
var realImage = regexp.MustCompile(`^linux-image-\d.*`)

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
	depends, err := apt.Depends(ctx, from.Package)
	if err != nil {
		return err
	}
	var name string
	for _, d := range depends {
		if realImage.MatchString(d) {
			name = d
		}
	}
	if name == "" {
		return fmt.Errorf("%s depends on no kernel image", from)
	}
	found, err := apt.Find(ctx, regexp.MustCompile(regexp.QuoteMeta(name)))
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("suite %s lacks %s, which %s needs", from.suite, name, from.Package)
	}
	image := found[len(found)-1]
	deb, err := apt.Download(ctx, image, dir)
	if err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	if _, err := host.Run(ctx, host.Command{Args: []string{"dpkg-deb", "-x", deb, tree}}); err != nil {
		return err
	}
	images, _ := filepath.Glob(filepath.Join(tree, "boot/vmlinuz-*"))
	modules, _ := filepath.Glob(filepath.Join(tree, "usr/lib/modules/*"))
	if len(modules) == 0 {
		modules, _ = filepath.Glob(filepath.Join(tree, "lib/modules/*"))
	}
	if len(images) != 1 || len(modules) != 1 {
		return fmt.Errorf("%s has %d kernels and %d module trees, want one each", image, len(images), len(modules))
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
	if err := os.Rename(images[0], filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	for name, text := range map[string]string{"release": release, "source": image.String() + " of " + from.suite} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.Remove(deb); err != nil {
		return err
	}
	return os.RemoveAll(tree)
}
