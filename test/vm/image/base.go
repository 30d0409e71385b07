package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// basePackages is what the node role runs (mkfs, fsck, mount, resize, modprobe), and a busybox for whoever looks around in a
// pod. Certificates are left out: the driver talks to nobody but the API server, whose authority the pod's token brings.
var basePackages = []string{"btrfs-progs", "busybox-static", "dash", "e2fsprogs", "kmod", "mount", "util-linux", "xfsprogs"}

// mergeUsr lays the links that the packages' files are found by; by default a package brings them that is not among ours.
const mergeUsr = `for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d"; ln -s "usr/$d" "$1/$d"; done`

// baseRecipe changes when the way of making the base does.
const baseRecipe = "2"

// cut are files that no container needs: what is copied from this machine, documentation, translations, and the interpreters
// and tables of helpers that are not called (xfs_scrub's Python and its 30 MB of Unicode, Perl, debconf).
var cut = []string{
	"/dev/*", "/etc/apt", "/etc/cron*", "/etc/hostname", "/etc/logrotate.d", "/etc/pam*", "/etc/python3*", "/etc/resolv.conf",
	"/etc/systemd", "/usr/bin/perl*", "/usr/bin/python3*", "/usr/lib/*/gconv", "/usr/lib/*/libicudata.so*", "/usr/lib/*/libicui18n.so*",
	"/usr/lib/*/libicuuc.so*", "/usr/lib/*/perl", "/usr/lib/*/perl-base", "/usr/lib/*/xfsprogs", "/usr/lib/python3*", "/usr/lib/systemd",
	"/usr/sbin/xfs_scrub*", "/usr/share/bash-completion", "/usr/share/debconf", "/usr/share/doc", "/usr/share/info",
	"/usr/share/initramfs-tools", "/usr/share/lintian", "/usr/share/locale", "/usr/share/man", "/usr/share/perl*", "/usr/share/python3",
	"/usr/share/zoneinfo", "/var/cache/*", "/var/lib/apt/*", "/var/log/*",
}

// base returns the tar of the image's Debian layer. Only unpacked, never configured: no maintainer script runs, so it takes
// seconds and needs neither a chroot nor the target's processor.
func base(ctx context.Context, h *host.Host) (string, error) {
	if err := h.Need(ctx, host.Tool{Program: "mmdebstrap", Package: "mmdebstrap"}); err != nil {
		return "", err
	}
	// The alias only says which release is the stable one; see the kernels.
	stable, err := h.Apt(ctx, "stable")
	if err != nil {
		return "", err
	}
	apt, err := h.Apt(ctx, stable.Codename)
	if err != nil {
		return "", err
	}
	key := host.Key(baseRecipe, apt.Codename, strings.Join(basePackages, " "), strings.Join(cut, " "))
	dir, err := h.Entry(ctx, "image-base", key, func(ctx context.Context, dir string) error {
		return h.Step("image: Debian base of "+apt.Codename, 15*time.Second, func() error { return makeBase(ctx, apt, dir) })
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "base.tar"), nil
}

func makeBase(ctx context.Context, apt *host.Apt, dir string) (err error) {
	tree := filepath.Join(dir, "tree")
	_, err = host.Run(ctx, host.Command{Nice: true, Args: []string{
		"mmdebstrap", "--quiet", "--variant=extract", "--mode=root", "--include=" + strings.Join(basePackages, ","),
		"--setup-hook=" + mergeUsr, `--aptopt=Acquire::Languages "none"`, `--aptopt=APT::Install-Recommends "false"`, apt.Codename, tree, apt.Sources(),
	}})
	if err != nil {
		return err
	}
	for _, pattern := range cut {
		found, err := filepath.Glob(tree + pattern)
		if err != nil {
			return fmt.Errorf("cut %s: %w", pattern, err)
		}
		for _, f := range found {
			if err := os.RemoveAll(f); err != nil {
				return fmt.Errorf("cut %s: %w", pattern, err)
			}
		}
	}
	if err := addAccounts(tree); err != nil {
		return err
	}
	if err := addApplets(ctx, tree); err != nil {
		return err
	}
	_, err = host.Run(ctx, host.Command{Args: []string{
		"tar", "--sort=name", "--mtime=@0", "--numeric-owner", "-C", tree, "-cf", filepath.Join(dir, "base.tar"), ".",
	}})
	return errors.Join(err, os.RemoveAll(tree))
}

// addAccounts writes what the scripts of base-passwd and base-files would, as far as a container needs it.
func addAccounts(tree string) error {
	for name, text := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":  "root:x:0:\ndisk:x:6:\nnogroup:x:65534:\n",
	} {
		if err := os.WriteFile(filepath.Join(tree, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for name, mode := range map[string]os.FileMode{"root": 0o700, "proc": 0o555, "sys": 0o555, "run": 0o755, "mnt": 0o755} {
		if err := os.MkdirAll(filepath.Join(tree, name), mode); err != nil {
			return err
		}
	}
	return nil
}

// addApplets links busybox's commands where no package brought the real one, so that ls and cat work in a pod.
func addApplets(ctx context.Context, tree string) error {
	busybox := filepath.Join(tree, "usr/bin/busybox")
	applets, err := host.Run(ctx, host.Command{Args: []string{busybox, "--list"}})
	if err != nil {
		return err
	}
	for _, a := range strings.Fields(applets) {
		if anyExists(filepath.Join(tree, "usr/bin", a), filepath.Join(tree, "usr/sbin", a)) {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(tree, "usr/bin", a)); err != nil {
			return err
		}
	}
	return nil
}

func anyExists(paths ...string) bool {
	for _, p := range paths {
		if _, err := os.Lstat(p); err == nil {
			return true
		}
	}
	return false
}
