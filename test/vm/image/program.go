package image

import (
	"maps"
	"path"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Program makes the image ref of one static program, in /usr/local/bin, where a cluster's pods look for it, and of more files of
// the host by their path in the image. dir receives the layer and must stay as long as the image is used.
func Program(ref, program string, more map[string]string, dir string) (Image, error) {
	name := filepath.Base(program)
	list := []file{{path: "/usr/local/bin/" + name, from: program}, {path: "/tmp/", mode: 0o1777}}
	for _, to := range slices.Sorted(maps.Keys(more)) {
		list = append(list, file{path: path.Clean(to), from: more[to]})
	}
	l, err := makeLayer(filepath.Join(dir, name+".program.tar"), list)
	if err != nil {
		return Image{}, err
	}
	return assemble(v1.Config{Entrypoint: []string{"/usr/local/bin/" + name}}, []string{ref}, l)
}

// AddNames gives the image that has the name more names.
func AddNames(images []Image, name string, more ...string) []Image {
	for i, have := range images {
		if slices.Contains(have.Names, name) {
			images[i].Names = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(have.Names), more...))))
		}
	}
	return images
}
