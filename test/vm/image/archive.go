package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image is an image with all of its names.
type Image struct {
	v1.Image
	// Names are full references with a tag; one or more.
	Names []string
}

// loadEntry is an element of manifest.json, the format of docker save.
type loadEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// Annotations of an index entry by which containerd names an image at import.
const (
	annotationImageName = "io.containerd.image.name"
	annotationRefName   = "org.opencontainers.image.ref.name"
)

// Write writes one archive of the images that is in two formats at once, an OCI layout and a docker save, over the same blobs:
// ctr images import, kind load image-archive, docker load, podman load and skopeo all take it.
func Write(out string, images ...Image) (err error) {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = fmt.Errorf("write image archive %s: %w", out, err)
		}
	}()
	a := &archive{w: tar.NewWriter(f), have: map[string]bool{}}
	if err := a.text("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var entries []loadEntry
	for _, i := range images {
		entry, err := a.image(i)
		if err != nil {
			return fmt.Errorf("image %v: %w", i.Names, err)
		}
		entries = append(entries, entry)
		for _, n := range i.Names {
			tag, err := name.NewTag(n, name.StrictValidation)
			if err != nil {
				return err
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i.Image, Descriptor: v1.Descriptor{
				Platform:    &v1.Platform{OS: "linux", Architecture: architecture},
				Annotations: map[string]string{annotationImageName: n, annotationRefName: tag.TagStr()},
			}})
		}
	}
	text, err := index.RawManifest()
	if err != nil {
		return err
	}
	if err := a.text("index.json", text); err != nil {
		return err
	}
	if text, err = json.Marshal(entries); err != nil {
		return err
	}
	if err := a.text("manifest.json", text); err != nil {
		return err
	}
	return a.w.Close()
}

// archive is an archive being written. A blob that several images share is written once.
type archive struct {
	w    *tar.Writer
	have map[string]bool
}

func (a *archive) image(i Image) (loadEntry, error) {
	e := loadEntry{RepoTags: i.Names}
	layers, err := i.Layers()
	if err != nil {
		return e, err
	}
	for _, l := range layers {
		hash, err := l.Digest()
		if err != nil {
			return e, err
		}
		e.Layers = append(e.Layers, blobPath(hash))
		if err := a.layer(l, hash); err != nil {
			return e, err
		}
	}
	config, err := i.RawConfigFile()
	if err != nil {
		return e, err
	}
	hash, err := i.ConfigName()
	if err != nil {
		return e, err
	}
	e.Config = blobPath(hash)
	if err := a.text(e.Config, config); err != nil {
		return e, err
	}
	manifest, err := i.RawManifest()
	if err != nil {
		return e, err
	}
	if hash, err = i.Digest(); err != nil {
		return e, err
	}
	return e, a.text(blobPath(hash), manifest)
}

func (a *archive) layer(l v1.Layer, hash v1.Hash) error {
	if a.have[blobPath(hash)] {
		return nil
	}
	size, err := l.Size()
	if err != nil {
		return err
	}
	r, err := l.Compressed()
	if err != nil {
		return err
	}
	defer r.Close()
	return a.entry(blobPath(hash), size, func() error { _, err := io.Copy(a.w, r); return err })
}

func (a *archive) text(name string, b []byte) error {
	if a.have[name] {
		return nil
	}
	return a.entry(name, int64(len(b)), func() error { _, err := a.w.Write(b); return err })
}

func (a *archive) entry(name string, size int64, body func() error) error {
	a.have[name] = true
	if err := a.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644}); err != nil {
		return err
	}
	return body()
}

func blobPath(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }
