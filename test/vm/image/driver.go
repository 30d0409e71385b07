package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"sigs.k8s.io/yaml"
)

// DriverName is the driver's image without a tag.
const DriverName = "ghcr.io/csi-ublk/csi-ublk"

// DriverOptions says how the driver's image is built.
type DriverOptions struct {
	// Tag is the image's; "" means the chart's appVersion, which is what the chart asks for when nothing else is said.
	Tag string
	// Race builds with the race detector. It needs a C compiler.
	Race bool
}

// Driver builds the driver from the repository and returns its image: Debian's tools below, the static program above, so that
// a rebuild changes the upper layer only. dir receives the program and its layer, and must stay as long as the image is used.
func Driver(ctx context.Context, h *host.Host, repo, dir string, o DriverOptions) (Image, error) {
	tag, err := driverTag(repo, o.Tag)
	if err != nil {
		return Image{}, err
	}
	lower, err := DriverBase(ctx, h)
	if err != nil {
		return Image{}, err
	}
	program := filepath.Join(dir, "csi-ublk")
	err = h.Step("image: compiling csi-ublk", 0, func() error { return compile(ctx, repo, program, tag, o) })
	if err != nil {
		return Image{}, err
	}
	upper, err := makeLayer(filepath.Join(dir, "driver.tar"), []file{{path: "/usr/bin/csi-ublk", from: program}})
	if err != nil {
		return Image{}, err
	}
	layers, err := lower.Layers()
	if err != nil {
		return Image{}, err
	}
	return assemble(v1.Config{Entrypoint: []string{"/usr/bin/csi-ublk"}, Labels: labels(tag)}, []string{DriverName + ":" + tag}, append(layers, upper)...)
}

// DriverBase is the lower part of the driver's image as an image of its own: a node that has it unpacked gets a new build of the
// driver in a second.
func DriverBase(ctx context.Context, h *host.Host) (Image, error) {
	tar, err := base(ctx, h)
	if err != nil {
		return Image{}, err
	}
	l, err := openLayer(tar)
	if err != nil {
		return Image{}, err
	}
	return assemble(v1.Config{}, []string{"localhost/csi-ublk-base:1"}, l)
}

func compile(ctx context.Context, repo, out, version string, o DriverOptions) error {
	args := []string{"go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=" + version, "-o", out}
	env := []string{"CGO_ENABLED=0"}
	if o.Race {
		// Linked statically all the same: the image's C library need not be the machine's.
		args = []string{"go", "build", "-race", "-ldflags", "-X main.version=" + version + ` -linkmode external -extldflags "-static"`, "-o", out}
		env = []string{"CGO_ENABLED=1"}
	}
	_, err := host.Run(ctx, host.Command{Args: append(args, "./cmd/csi-ublk"), Dir: repo, Env: env})
	return err
}

// driverTag is tag, or what the chart in the repository asks for.
func driverTag(repo, tag string) (string, error) {
	if tag != "" {
		return strings.TrimPrefix(tag, "v"), nil
	}
	text, err := os.ReadFile(filepath.Join(repo, "charts", "csi-ublk", "Chart.yaml"))
	if err != nil {
		return "", fmt.Errorf("find the image's version: %w", err)
	}
	var chart struct {
		AppVersion string `json:"appVersion"`
	}
	if err := yaml.Unmarshal(text, &chart); err != nil {
		return "", fmt.Errorf("decode Chart.yaml: %w", err)
	}
	if chart.AppVersion == "" {
		return "", fmt.Errorf("find the image's version: Chart.yaml has no appVersion")
	}
	return chart.AppVersion, nil
}

// labels are the OCI annotations that registries show. There is no date among them, as in all that is built here.
func labels(version string) map[string]string {
	const p, home = "org.opencontainers.image.", "https://github.com/csi-ublk/csi-ublk"
	return map[string]string{
		p + "title": "csi-ublk", p + "description": "Node-local volumes for Kubernetes, served as ublk block devices",
		p + "version": version, p + "url": home, p + "source": home, p + "licenses": "Apache-2.0",
	}
}
