package kind

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/csi-ublk/csi-ublk/test/vm/cluster"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/image"
	"github.com/csi-ublk/csi-ublk/test/vm/kube"
	"github.com/csi-ublk/csi-ublk/test/vm/root"
)

// nodePackages are those of kind's own base image, as far as they are used here. runc is Debian's, as on the rig's other nodes,
// and kube-proxy's image takes nft from here.
var nodePackages = []string{
	"bash", "ca-certificates", "conntrack", "curl", "dbus", "e2fsprogs", "ethtool", "iproute2", "iptables", "jq", "kmod",
	"libseccomp2", "mount", "nftables", "procps", "runc", "systemd", "util-linux", "xfsprogs",
}

// layNode makes the tree of a node, its images unpacked in containerd's store.
func (p programs) layNode(ctx context.Context, h *host.Host, repo, work, node string) error {
	debian, err := root.Tree(ctx, h, nodePackages...)
	if err != nil {
		return err
	}
	if _, err := host.Run(ctx, host.Command{Args: []string{"cp", "-a", "--reflink=auto", debian, node}}); err != nil {
		return err
	}
	if err := cluster.InstallRuntime(node, p.containerd, p.cni); err != nil {
		return err
	}
	err = root.Install(node, map[string]string{
		"usr/bin/kubeadm":      p.kubeadm.Path("kubeadm"),
		"usr/bin/kubelet":      p.kubernetes.Path("kubelet"),
		"usr/bin/kubectl":      p.kubernetes.Path("kubectl"),
		"kind/bin/rig-node.sh": filepath.Join(work, "rig-node.sh"),

		"etc/systemd/system/kubelet.service.d/20-rig.conf":    filepath.Join(work, "rig-kubelet.conf"),
		"etc/systemd/system/containerd.service.d/20-rig.conf": filepath.Join(work, "rig-containerd.conf"),
	})
	if err != nil {
		return err
	}
	module, err := host.Run(ctx, host.Command{
		Args: []string{"go", "list", "-m", "-f", "{{.Dir}}", kube.Kind.Module}, Dir: filepath.Join(repo, "test", "vm", "kube", kube.Kind.Name),
		Env: []string{"GOWORK=off", "GOFLAGS=-mod=readonly"},
	})
	if err != nil {
		return err
	}
	base := filepath.Join(strings.TrimSpace(module), "images", "base", "files")
	if _, err := host.Run(ctx, host.Command{Args: []string{filepath.Join(work, "lay-node.sh"), node, base, p.kubernetes.Version}}); err != nil {
		return err
	}
	images, err := p.images(ctx, h, work, node)
	if err != nil {
		return err
	}
	archive := filepath.Join(work, "images.tar")
	if err := image.Write(archive, images...); err != nil {
		return err
	}
	return cluster.ImportImages(ctx, node, archive, work)
}

// images are all that a cluster of such nodes would pull: the control plane's, under the names that kubeadm asks for, and those
// of the rig's other clusters.
func (p programs) images(ctx context.Context, h *host.Host, work, node string) ([]image.Image, error) {
	out, err := host.Run(ctx, host.Command{Args: []string{p.kubeadm.Path("kubeadm"), "config", "images", "list", "--kubernetes-version", p.kubernetes.Version}})
	if err != nil {
		return nil, err
	}
	images, err := image.Cluster(ctx, h, p.kubernetes, work)
	if err != nil {
		return nil, err
	}
	pauses, err := pauseNames(node)
	if err != nil {
		return nil, err
	}
	for _, ref := range lines(out) {
		ref = strings.TrimSpace(ref)
		name, _, _ := strings.Cut(path.Base(ref), ":")
		var i image.Image
		switch name {
		case "coredns": // files/extra.yaml leaves it out
			continue
		case "pause":
			pauses = append(pauses, ref)
			continue
		case "etcd":
			i, err = image.Program(ref, p.etcd.Path("etcd"), nil, work)
		case "kube-proxy":
			var nft map[string]string
			if nft, err = withLibraries(ctx, node, "/usr/sbin/nft"); err == nil {
				i, err = image.Program(ref, p.kubernetes.Path(name), nft, work)
			}
		default:
			i, err = image.Program(ref, p.kubernetes.Path(name), nil, work)
		}
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", ref, err)
		}
		images = append(images, i)
	}
	return image.AddNames(images, image.Pause, pauses...), nil
}

var sandboxImage = regexp.MustCompile(`sandbox_image = "([^"]+)"`)

// pauseNames is what containerd's configuration calls the image of a pod's sandbox.
func pauseNames(node string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(node, "etc", "containerd", "config.toml"))
	if err != nil {
		return nil, err
	}
	m := sandboxImage.FindSubmatch(text)
	if m == nil {
		return nil, fmt.Errorf("containerd's configuration of kind names no sandbox_image")
	}
	return []string{string(m[1])}, nil
}

var libraryPath = regexp.MustCompile(`/\S+`)

// withLibraries returns a program of the tree and the libraries it needs, by their paths.
func withLibraries(ctx context.Context, tree, program string) (map[string]string, error) {
	out, err := host.Run(ctx, host.Command{Args: []string{"chroot", tree, "ldd", program}})
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, p := range append(libraryPath.FindAllString(out, -1), program) {
		real, err := host.Run(ctx, host.Command{Args: []string{"chroot", tree, "realpath", p}})
		if err != nil {
			return nil, err
		}
		// By the name that the program asks for: /lib is a link to /usr/lib on the node, but not in the image.
		found[p] = filepath.Join(tree, strings.TrimSpace(real))
	}
	return found, nil
}
