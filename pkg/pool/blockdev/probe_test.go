package blockdev

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestProbe(t *testing.T) {
	const size = 8 << 20
	for name, c := range map[string]struct {
		offset int64
		bytes  string
		want   Content
	}{
		"all zeros":                             {0, "", Content{Blank: true}},
		"raw data without a signature":          {4096, "a database page", Content{}},
		"remains at the end of a wiped disk":    {size - 9000, "remains", Content{Blank: true}},
		"zeros where nothing looks but data is": {size / 2, "far from both ends", Content{Blank: true}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "image")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.Truncate(size); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte(c.bytes), c.offset); err != nil {
				t.Fatal(err)
			}
			got, err := Probe(context.Background(), path)
			if err != nil || got != c.want {
				t.Errorf("Probe = %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestProbeNeverGuesses(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"no such device":       "/nonexistent",
		"a directory":          t.TempDir(),
		"a device of no bytes": empty,
	} {
		if c, err := Probe(context.Background(), path); err == nil || c.Blank {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestParseExport(t *testing.T) {
	for out, want := range map[string]Content{
		"DEVNAME=/dev/a\nLABEL=csi-ublk\nUUID=u-1\nBLOCK_SIZE=4096\nTYPE=xfs\nUSAGE=filesystem\n": {Type: "xfs", Label: "csi-ublk", UUID: "u-1"},
		"DEVNAME=/dev/a\nPTUUID=1\nPTTYPE=gpt\n":                                                  {Type: "gpt", Table: true},
		"TYPE=vfat\nPTTYPE=dos\n":                                                                 {Type: "vfat"},
		"TYPE=ext4\nLABEL=my\\ data\n":                                                            {Type: "ext4", Label: "my data"},
		"":                                                                                        {},
	} {
		if got := parseExport(out); got != want {
			t.Errorf("parseExport(%q) = %+v, want %+v", out, got, want)
		}
	}
}
