// Package root makes the guests' root file systems: Debian base systems as ext4 images, which guests never write to.
package root

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// Spec describes a root file system. Its zero value is the base system for tests of a single guest.
type Spec struct {
	// Packages are Debian packages besides those of the base system (Base).
	Packages []string
	// Overlay changes the tree at dir before the image is made; it may chroot into it. nil changes nothing.
	Overlay func(ctx context.Context, dir string) error
	// OverlayKey stands for everything that Overlay does: a new key, a new image. Needed with Overlay.
	OverlayKey string
	// SizeBytes is the size of the (sparse) image; 0 means 6 GiB.
	SizeBytes int64
}

// Base is the packages of every root.
var Base = []string{
	"bash", "btrfs-progs", "busybox-static", "dmsetup", "e2fsprogs", "fio", "iproute2", "kmod", "mount", "procps", "util-linux", "xfsprogs",
}

const (
	defaultSizeBytes = 6 << 30
	// recipe changes when the way of building does.
	recipe = "1"
)

var tools = []host.Tool{
	{Program: "mmdebstrap", Package: "mmdebstrap"}, {Program: "mke2fs", Package: "e2fsprogs"}, {Program: "dpkg-deb", Package: "dpkg"},
}

// Tools lists what roots need of the host.
func Tools() []host.Tool { return tools }

// Build returns the path of the image for spec, and makes it first if the cache lacks it. Making needs to be root. It blocks
// for up to minutes and shows progress.
func Build(ctx context.Context, h *host.Host, spec Spec) (string, error) {
	if (spec.Overlay == nil) != (spec.OverlayKey == "") {
		return "", errors.New("root: Overlay and OverlayKey go together")
	}
	packages := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(Base), spec.Packages...))))
	size := spec.SizeBytes
	if size == 0 {
		size = defaultSizeBytes
	}
	treeKey := host.Key("tree", recipe, strings.Join(packages, ","))
	imageKey := host.Key("image", recipe, treeKey, spec.OverlayKey, strconv.FormatInt(size, 10))
	dir, err := h.Entry(ctx, "root", imageKey, func(ctx context.Context, dir string) error {
		if os.Geteuid() != 0 {
			return errors.New("make a root file system: this needs root (the files in it belong to many users); run it once with sudo")
		}
		if err := h.Need(ctx, tools...); err != nil {
			return err
		}
		tree, err := bootstrap(ctx, h, treeKey, packages)
		if err != nil {
			return err
		}
		return h.Step("root: writing the image", 10*time.Second, func() error { return writeImage(ctx, spec, tree, size, dir) })
	})
	if err != nil {
		return "", fmt.Errorf("root file system: %w", err)
	}
	return filepath.Join(dir, "root.ext4"), nil
}

// Cached returns the image for a spec without an overlay if the cache has it.
func Cached(h *host.Host, packages ...string) bool {
	all := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(Base), packages...))))
	treeKey := host.Key("tree", recipe, strings.Join(all, ","))
	_, ok := h.Has("root", host.Key("image", recipe, treeKey, "", strconv.FormatInt(defaultSizeBytes, 10)))
	return ok
}

// Tree returns a directory with a system of these packages and what they need, which must not be changed: copy it. Making it
// needs root.
func Tree(ctx context.Context, h *host.Host, packages ...string) (string, error) {
	if err := h.Need(ctx, tools...); err != nil {
		return "", err
	}
	packages = slices.Compact(slices.Sorted(slices.Values(packages)))
	tree, err := bootstrap(ctx, h, host.Key("tree", recipe, strings.Join(packages, ",")), packages)
	if err != nil {
		return "", fmt.Errorf("system of %d packages: %w", len(packages), err)
	}
	return tree, nil
}

// bootstrap returns a tree with the packages of the stable release.
func bootstrap(ctx context.Context, h *host.Host, key string, packages []string) (string, error) {
	dir, err := h.Entry(ctx, "tree", key, func(ctx context.Context, dir string) error {
		stable, err := h.Apt(ctx, "stable")
		if err != nil {
			return err
		}
		suite, err := h.Apt(ctx, stable.Codename)
		if err != nil {
			return err
		}
		return h.Step("root: installing the base system of "+suite.Codename, 2*time.Minute, func() error {
			args := []string{
				"mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--include=" + strings.Join(packages, ","),
				`--aptopt=Acquire::Languages "none"`, "--aptopt=Acquire::Retries 3", "--dpkgopt=force-unsafe-io",
				"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
				`--customize-hook=rm -rf "$1"/var/cache/apt/*.bin "$1"/var/lib/apt/lists/*`,
				suite.Codename, filepath.Join(dir, "tree"), suite.Sources(),
			}
			_, err := host.Run(ctx, host.Command{Args: args, Nice: true})
			return err
		})
	})
	return filepath.Join(dir, "tree"), err
}

// writeImage makes root.ext4 in dir of the tree, by way of a copy if an overlay changes it.
func writeImage(ctx context.Context, spec Spec, tree string, size int64, dir string) error {
	if spec.Overlay != nil {
		work := filepath.Join(dir, "tree")
		if _, err := host.Run(ctx, host.Command{Args: []string{"cp", "-a", "--reflink=auto", tree, work}}); err != nil {
			return err
		}
		tree = work
		if err := spec.Overlay(ctx, tree); err != nil {
			return err
		}
	}
	image := filepath.Join(dir, "root.ext4")
	f, err := os.OpenFile(image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return fmt.Errorf("size the image: %w", err)
	}
	mke2fs := []string{
		host.Tool{Program: "mke2fs"}.Find(), "-q", "-t", "ext4", "-J", "size=16", "-E", "lazy_itable_init=1,root_owner=0:0", "-d", tree, image,
	}
	if _, err := host.Run(ctx, host.Command{Args: mke2fs}); err != nil {
		return err
	}
	if spec.Overlay != nil {
		return os.RemoveAll(tree)
	}
	return nil
}
