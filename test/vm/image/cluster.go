package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kube"
)

// Names of images that a cluster of the rig has besides the driver's and the sidecars'.
const (
	// Pause holds a pod's namespaces. It is named as upstream's, but is a busybox that sleeps.
	Pause = "registry.k8s.io/pause:3.10.2"
	// Busybox is what test pods run.
	Busybox = "docker.io/library/busybox:1.37"
)

// sidecars are the programs with an image of their own, named as upstream names it, so that the chart's defaults apply.
var sidecars = []string{"csi-provisioner", "csi-resizer", "csi-snapshotter", "snapshot-controller"}

// Cluster returns the images that a cluster needs and that do not change with the driver's code. dir receives their layers and
// must stay as long as they are used.
func Cluster(ctx context.Context, h *host.Host, kubernetes kube.Built, dir string) ([]Image, error) {
	driverBase, err := DriverBase(ctx, h)
	if err != nil {
		return nil, err
	}
	images := []Image{driverBase}
	for _, name := range sidecars {
		l, err := makeLayer(filepath.Join(dir, name+".tar"), []file{{path: "/" + name, from: kubernetes.Path(name)}})
		if err != nil {
			return nil, err
		}
		ref := fmt.Sprintf("registry.k8s.io/sig-storage/%s:%s", name, kubernetes.Versions[name])
		i, err := assemble(v1.Config{Entrypoint: []string{"/" + name}}, []string{ref}, l)
		if err != nil {
			return nil, err
		}
		images = append(images, i)
	}
	more, err := busyboxes(ctx, h, dir)
	return append(images, more...), err
}

// busyboxes makes the images that are nothing but a busybox.
func busyboxes(ctx context.Context, h *host.Host, dir string) ([]Image, error) {
	l, err := busyboxLayer(ctx, h, dir)
	if err != nil {
		return nil, err
	}
	pause, err := assemble(v1.Config{Entrypoint: []string{"/bin/busybox", "sleep", "2147483647"}}, []string{Pause}, l)
	if err != nil {
		return nil, err
	}
	shell, err := assemble(v1.Config{Cmd: []string{"sh"}}, []string{Busybox, "docker.io/library/busybox:stable"}, l)
	return []Image{pause, shell}, err
}

// busyboxLayer has a busybox, which comes out of the driver's base, under the names of all its applets.
func busyboxLayer(ctx context.Context, h *host.Host, dir string) (v1.Layer, error) {
	from, err := base(ctx, h)
	if err != nil {
		return nil, err
	}
	program := filepath.Join(dir, "busybox")
	if err := extract(from, "usr/bin/busybox", program); err != nil {
		return nil, err
	}
	applets, err := host.Run(ctx, host.Command{Args: []string{program, "--list"}})
	if err != nil {
		return nil, err
	}
	files := []file{
		{path: "/bin/busybox", from: program},
		{path: "/tmp/", mode: 0o1777},
		{path: "/etc/passwd", text: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", mode: 0o644},
		{path: "/etc/group", text: "root:x:0:\nnogroup:x:65534:\n", mode: 0o644},
	}
	for _, a := range strings.Fields(applets) {
		if a != "busybox" {
			files = append(files, file{path: "/bin/" + a, link: "busybox"})
		}
	}
	return makeLayer(filepath.Join(dir, "busybox.tar"), files)
}

// extract copies one program out of a tar.
func extract(archive, name, out string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("extract %s: not in %s", name, archive)
		}
		if err != nil {
			return fmt.Errorf("extract %s from %s: %w", name, archive, err)
		}
		if strings.TrimPrefix(h.Name, "./") != name || h.Typeflag != tar.TypeReg {
			continue
		}
		w, err := os.OpenFile(out, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, r)
		return errors.Join(err, w.Close())
	}
}

// ClusterKey stands for the content of Cluster's images. It makes the driver's base if the cache lacks it, but none of the
// images.
func ClusterKey(ctx context.Context, h *host.Host, kubernetes kube.Built) (string, error) {
	from, err := base(ctx, h)
	if err != nil {
		return "", err
	}
	return host.Key(clusterRecipe, kubernetes.Key, filepath.Base(filepath.Dir(from)), Pause, Busybox), nil
}

// clusterRecipe changes when the way of making Cluster's images does.
const clusterRecipe = "1"
