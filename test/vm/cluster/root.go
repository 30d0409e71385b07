package cluster

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/image"
	"github.com/csi-ublk/csi-ublk/test/vm/kube"
	"github.com/csi-ublk/csi-ublk/test/vm/root"
)

// rootRecipe changes when the way of making a node's root does.
const rootRecipe = "1"

// nodePackages are what a node has besides the base of all guests. runc is Debian's, because a pod's sandbox always carries a
// seccomp profile, and a runc that is built without a C library cannot apply one.
var nodePackages = []string{"conntrack", "iptables", "iputils-ping", "nftables", "runc", "ca-certificates"}

// rootSizeBytes leaves room for the driver's quick-start pool, a sparse file of 10 GiB.
const rootSizeBytes = 32 << 30

//go:embed node
var nodeFiles embed.FS

// nodeRoot returns the root file system of all nodes: Debian, the node's programs, and the images that do not change with the
// driver's code, unpacked here once instead of at every boot.
func nodeRoot(ctx context.Context, h *host.Host, p programs) (string, error) {
	imagesKey, err := image.ClusterKey(ctx, h, p.kubernetes)
	if err != nil {
		return "", err
	}
	script, err := nodeFiles.ReadFile("node/import.sh")
	if err != nil {
		return "", err
	}
	return root.Build(ctx, h, root.Spec{
		Packages: nodePackages, SizeBytes: rootSizeBytes,
		OverlayKey: host.Key(rootRecipe, p.kubernetes.Key, p.containerd.Key, p.cni.Key, imagesKey, string(script)),
		Overlay: func(ctx context.Context, tree string) error {
			if err := p.installOnNode(tree); err != nil {
				return err
			}
			return h.Step("root: unpacking the images", 20*time.Second, func() error { return importImages(ctx, h, p, tree) })
		},
	})
}

// installOnNode lays the programs of a node into its tree.
func (p programs) installOnNode(tree string) error {
	if err := InstallRuntime(tree, p.containerd, p.cni); err != nil {
		return err
	}
	return root.Install(tree, map[string]string{
		"usr/local/bin/kubelet":    p.kubernetes.Path("kubelet"),
		"usr/local/bin/kube-proxy": p.kubernetes.Path("kube-proxy"),
	})
}

// InstallRuntime lays what runs containers on a node, and connects them, into its tree.
func InstallRuntime(tree string, containerd, cni kube.Built) error {
	return root.Install(tree, map[string]string{
		"usr/local/bin/containerd":              containerd.Path("containerd"),
		"usr/local/bin/containerd-shim-runc-v2": containerd.Path("containerd-shim-runc-v2"),
		"usr/local/bin/ctr":                     containerd.Path("ctr"),
		"opt/cni/bin/bridge":                    cni.Path("bridge"),
		"opt/cni/bin/host-local":                cni.Path("host-local"),
		"opt/cni/bin/loopback":                  cni.Path("loopback"),
		"opt/cni/bin/portmap":                   cni.Path("portmap"),
	})
}

func importImages(ctx context.Context, h *host.Host, p programs, tree string) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(tree), "images")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	images, err := image.Cluster(ctx, h, p.kubernetes, dir)
	if err != nil {
		return err
	}
	archive := filepath.Join(dir, "images.tar")
	if err := image.Write(archive, images...); err != nil {
		return err
	}
	return ImportImages(ctx, tree, archive, dir)
}

// ImportImages unpacks the images of an archive into the containerd store of a node's tree, by the containerd in that tree. dir
// receives a script. It needs root.
func ImportImages(ctx context.Context, tree, archive, dir string) error {
	script := filepath.Join(dir, "import.sh")
	text, err := nodeFiles.ReadFile("node/import.sh")
	if err != nil {
		return err
	}
	if err := os.WriteFile(script, text, 0o755); err != nil {
		return err
	}
	_, err = host.Run(ctx, host.Command{Args: []string{"unshare", "--mount", "--pid", "--fork", "--kill-child", script, tree, archive}})
	return err
}

// writeNodeFiles fills in the configuration that nodes read from their share.
func writeNodeFiles(dir string, nodes int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range []struct {
		from, to string
		values   any
	}{
		{"containerd.toml", "containerd.toml", map[string]string{"Pause": image.Pause}},
		{"kube-proxy.yaml", "kube-proxy.yaml", map[string]string{"Pods": podRange}},
	} {
		if err := fill(f.from, filepath.Join(dir, f.to), f.values); err != nil {
			return err
		}
	}
	for n := 1; n <= nodes; n++ {
		values := map[string]string{"Node": nodeName(n), "DNS": dnsAddress}
		if err := fill("kubelet.yaml", filepath.Join(dir, nodeName(n)+".kubelet.yaml"), values); err != nil {
			return err
		}
	}
	text, err := fs.ReadFile(nodeFiles, "node/boot.sh")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "boot.sh"), text, 0o755)
}

// fill writes a template of the node's files with its values.
func fill(name, out string, values any) error {
	t, err := template.New(name).Option("missingkey=error").ParseFS(nodeFiles, "node/"+name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	var text strings.Builder
	if err := t.Execute(&text, values); err != nil {
		return fmt.Errorf("fill in %s: %w", name, err)
	}
	return os.WriteFile(out, []byte(text.String()), 0o644)
}
