// Package image makes container images without a registry and without a container engine: layers from Debian packages and from
// static programs, written to archives that ctr, kind and docker load.
package image

import (
	"fmt"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// architecture is the one that everything here is built for: the machine's own.
const architecture = runtime.GOARCH

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// assemble makes an image of the layers, the lowest first. It carries no time stamp: equal content is an equal image, which
// the cache of node roots relies on.
func assemble(config v1.Config, names []string, layers ...v1.Layer) (Image, error) {
	config.Env = append([]string{searchPath}, config.Env...)
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	i, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: "linux", Architecture: architecture, Config: config, RootFS: v1.RootFS{Type: "layers"},
	})
	if err == nil {
		i, err = mutate.AppendLayers(i, layers...)
	}
	if err != nil {
		return Image{}, fmt.Errorf("make image %v: %w", names, err)
	}
	return Image{Image: i, Names: names}, nil
}
