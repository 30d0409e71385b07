package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// twoImages writes an archive of two images that share their lower layer.
func twoImages(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lower, err := makeLayer(filepath.Join(dir, "lower"), []file{{path: "/tmp/", mode: 0o1777}, {path: "/etc/motd", text: "hello", mode: 0o644}})
	if err != nil {
		t.Fatal(err)
	}
	upper, err := makeLayer(filepath.Join(dir, "upper"), []file{{path: "/usr/bin/program", from: program}, {path: "/usr/bin/alias", link: "program"}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := assemble(v1.Config{Entrypoint: []string{"/usr/bin/program"}, Labels: labels("1.2.3")}, []string{"example.com/a:1", "example.com/a:latest"}, lower, upper)
	if err != nil {
		t.Fatal(err)
	}
	b, err := assemble(v1.Config{}, []string{"example.com/b:2"}, lower)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "images.tar")
	if err := Write(out, a, b); err != nil {
		t.Fatal(err)
	}
	return out
}

// members reads a tar and fails on a name that comes twice.
func members(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := found[h.Name]; twice {
			t.Errorf("%s is in the archive twice", h.Name)
		}
		found[h.Name] = b
	}
}

func TestArchiveIsADockerSave(t *testing.T) {
	archive := twoImages(t)
	for ref, layers := range map[string]int{"example.com/a:1": 2, "example.com/a:latest": 2, "example.com/b:2": 1} {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		i, err := tarball.ImageFromPath(archive, &tag)
		if err != nil {
			t.Fatalf("%s: %v", ref, err)
		}
		if err := validate.Image(i); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
		if got, err := i.Layers(); err != nil || len(got) != layers {
			t.Errorf("%s: %d layers, %v; want %d", ref, len(got), err, layers)
		}
	}
}

func TestArchiveIsAnOCILayout(t *testing.T) {
	f, err := os.Open(twoImages(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found := members(t, f)
	if got := string(found["oci-layout"]); got != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout: %q", got)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(found["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range index.Manifests {
		names = append(names, m.Annotations["io.containerd.image.name"]+" "+m.Annotations["org.opencontainers.image.ref.name"])
		var manifest v1.Manifest
		if err := json.Unmarshal(found[blobPath(m.Digest)], &manifest); err != nil {
			t.Fatalf("manifest %s: %v", m.Digest, err)
		}
		for _, d := range append(manifest.Layers, manifest.Config) {
			if b, ok := found[blobPath(d.Digest)]; !ok || int64(len(b)) != d.Size {
				t.Errorf("blob %s: %d bytes, want %d", d.Digest, len(b), d.Size)
			}
		}
	}
	want := []string{"example.com/a:1 1", "example.com/a:latest latest", "example.com/b:2 2"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for path, b := range found {
		if hash, ok := strings.CutPrefix(path, "blobs/sha256/"); ok {
			if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != hash {
				t.Errorf("blob %s has other bytes than its name says", hash)
			}
		}
	}
}

func TestLayerHasTheFilesItWasGiven(t *testing.T) {
	tag, _ := name.NewTag("example.com/a:1")
	i, err := tarball.ImageFromPath(twoImages(t), &tag)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := i.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[1].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	type entry struct {
		Name, Link string
		Mode       int64
	}
	var got []entry
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entry{h.Name, h.Linkname, h.Mode})
	}
	want := []entry{{"usr/", "", 0o755}, {"usr/bin/", "", 0o755}, {"usr/bin/program", "", 0o755}, {"usr/bin/alias", "program", 0o777}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("upper layer (-want +got):\n%s", diff)
	}
	config, err := i.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.Labels["org.opencontainers.image.version"] != "1.2.3" || config.Config.Entrypoint[0] != "/usr/bin/program" {
		t.Errorf("config: %+v", config.Config)
	}
}

func TestEqualContentIsAnEqualArchive(t *testing.T) {
	a, err := os.ReadFile(twoImages(t))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(twoImages(t))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two archives of the same content differ")
	}
}
