// Package root makes the guests' root file systems: Debian base systems as ext4 images, which guests never write to.
package root

import (
	"context"
	"errors"

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

// Build returns the path of the image for spec, and makes it first if the cache lacks it. Needs root. It blocks for up to
// minutes and shows progress.
func Build(ctx context.Context, h *host.Host, spec Spec) (string, error) {
	return "", errors.ErrUnsupported
}
