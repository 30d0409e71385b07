// Package kind runs a kind cluster in a guest: on a machine without a ublk driver, and without a registry. The guest has Docker,
// and in it the image of a kind node that is made here of Debian packages and of the rig's own Kubernetes, containerd and images.
package kind

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/image"
	"github.com/csi-ublk/csi-ublk/test/vm/kube"
	"github.com/csi-ublk/csi-ublk/test/vm/root"
)

//go:embed files
var files embed.FS

// nodeImage is the node image's name in the guest's Docker.
const nodeImage = "localhost/csi-ublk-kind-node:1"

// crdsInGuest is where the guest has the CRDs of the snapshot API.
const crdsInGuest = "/usr/local/share/snapshot-crds"

// guestPackages are what the guest has besides the base of all guests.
var guestPackages = []string{"ca-certificates", "docker-cli", "docker.io", "iptables", "nftables"}

// rootSizeBytes leaves room for the pools of all nodes, which are sparse files.
const rootSizeBytes = 64 << 30

// rootRecipe changes when the way of making the root does.
const rootRecipe = "1"

// programs are the built ones.
type programs struct{ kubernetes, kubeadm, etcd, containerd, cni, kind, helm kube.Built }

func buildPrograms(ctx context.Context, h *host.Host, repo string) (p programs, err error) {
	for _, b := range []struct {
		to  *kube.Built
		set kube.Set
	}{
		{&p.kind, kube.Kind}, {&p.helm, kube.Helm}, {&p.etcd, kube.Etcd}, {&p.cni, kube.CNI}, {&p.containerd, kube.Containerd},
		{&p.kubernetes, kube.Kubernetes}, {&p.kubeadm, kube.Kubeadm},
	} {
		if *b.to, err = kube.Build(ctx, h, repo, b.set); err != nil {
			return p, err
		}
	}
	return p, nil
}

// guestRoot returns the root file system of the guest: Debian with Docker, kind and helm, and the node image in Docker's store.
func guestRoot(ctx context.Context, h *host.Host, repo string, p programs) (string, error) {
	imagesKey, err := image.ClusterKey(ctx, h, p.kubernetes)
	if err != nil {
		return "", err
	}
	parts := []string{rootRecipe, imagesKey, strings.Join(nodePackages, ",")}
	for _, b := range []kube.Built{p.kubernetes, p.kubeadm, p.etcd, p.containerd, p.cni, p.kind, p.helm} {
		parts = append(parts, b.Key)
	}
	for _, name := range []string{"lay-node.sh", "rig-kubelet.conf", "rig-containerd.conf", "rig-node.sh", "import-node.sh"} {
		text, err := files.ReadFile("files/" + name)
		if err != nil {
			return "", err
		}
		parts = append(parts, string(text))
	}
	return root.Build(ctx, h, root.Spec{
		Packages: guestPackages, SizeBytes: rootSizeBytes, OverlayKey: host.Key(parts...),
		Overlay: func(ctx context.Context, tree string) error {
			return h.Step("root: the image of a kind node", time.Minute, func() error { return p.install(ctx, h, repo, tree) })
		},
	})
}

// install lays the programs and the node image into the guest's tree.
func (p programs) install(ctx context.Context, h *host.Host, repo, tree string) (err error) {
	work, err := os.MkdirTemp(filepath.Dir(tree), "kind")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := unpackFiles(work); err != nil {
		return err
	}
	node := filepath.Join(work, "node")
	if err := p.layNode(ctx, h, repo, work, node); err != nil {
		return fmt.Errorf("make a node: %w", err)
	}
	_, err = host.Run(ctx, host.Command{Args: []string{
		"unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", filepath.Join(work, "import-node.sh"), tree, node, nodeImage,
	}})
	if err != nil {
		return fmt.Errorf("import the node's image: %w", err)
	}
	crds, err := kube.SnapshotCRDs(ctx, repo)
	if err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(tree, crdsInGuest), os.DirFS(crds)); err != nil {
		return fmt.Errorf("copy the snapshot API's CRDs: %w", err)
	}
	return root.Install(tree, map[string]string{
		"usr/local/bin/kind":    p.kind.Path("kind"),
		"usr/local/bin/helm":    p.helm.Path("helm"),
		"usr/local/bin/kubectl": p.kubernetes.Path("kubectl"),
	})
}

// unpackFiles writes the scripts to where they can be run.
func unpackFiles(dir string) error {
	entries, err := files.ReadDir("files")
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := files.ReadFile("files/" + e.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), text, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// lines splits a program's output.
func lines(text string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(s string) bool { return strings.TrimSpace(s) == "" })
}
