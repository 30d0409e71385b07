package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layer is an uncompressed layer in a file of the host. Compression would cost more time at every build and every import than
// it saves on one machine's disk.
type layer struct {
	file string
	hash v1.Hash
	size int64
}

var _ v1.Layer = (*layer)(nil)

// openLayer reads an existing tar once for its digest. The file must stay.
func openLayer(file string) (*layer, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	hash, size, err := v1.SHA256(f)
	if err != nil {
		return nil, fmt.Errorf("digest layer %s: %w", file, err)
	}
	return &layer{file: file, hash: hash, size: size}, nil
}

func (l *layer) Digest() (v1.Hash, error)             { return l.hash, nil }
func (l *layer) DiffID() (v1.Hash, error)             { return l.hash, nil }
func (l *layer) Size() (int64, error)                 { return l.size, nil }
func (l *layer) MediaType() (types.MediaType, error)  { return types.OCIUncompressedLayer, nil }
func (l *layer) Compressed() (io.ReadCloser, error)   { return os.Open(l.file) }
func (l *layer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.file) }

// file is one entry of a layer that is made here: a copy of a host's file (from), a link (link), a directory (a path with a
// slash at its end), or text.
type file struct {
	path string
	from string
	link string
	text string
	mode int64 // 0 means 0755
}

// makeLayer writes the files and their parent directories as a tar. Equal files give equal bytes: owners and times are fixed.
func makeLayer(out string, files []file) (_ *layer, err error) {
	f, err := os.Create(out)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	for _, d := range parents(files) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755}); err != nil {
			return nil, fmt.Errorf("write layer %s: %w", out, err)
		}
	}
	for _, e := range files {
		if err := e.writeTo(w); err != nil {
			return nil, fmt.Errorf("write %s to layer %s: %w", e.path, out, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write layer %s: %w", out, err)
	}
	return openLayer(out)
}

func (e file) writeTo(w *tar.Writer) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(e.path, "/"), Mode: e.mode}
	if h.Mode == 0 {
		h.Mode = 0o755
	}
	switch {
	case e.link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		return w.WriteHeader(h)
	case strings.HasSuffix(h.Name, "/"):
		h.Typeflag = tar.TypeDir
		return w.WriteHeader(h)
	case e.from == "":
		h.Size = int64(len(e.text))
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.WriteString(w, e.text)
		return err
	}
	in, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	h.Size = st.Size()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}

// parents returns the directories above the files, the outer ones first.
func parents(files []file) []string {
	var dirs []string
	for _, e := range files {
		for d := path.Dir(strings.Trim(e.path, "/")); d != "."; d = path.Dir(d) {
			if !slices.Contains(dirs, d) {
				dirs = append(dirs, d)
			}
		}
	}
	slices.Sort(dirs)
	return dirs
}
