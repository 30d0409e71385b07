package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestNodeConfig(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		file string
		want []pool.Options
		says string
	}{
		"the quick start": {
			"pools:\n- name: default\n  kind: image\n  size: 10Gi\n",
			[]pool.Options{{Name: "default", Kind: "image", SizeBytes: 10 * gib, ReservePercent: 5}}, "",
		},
		"every kind and key": {
			"pools:\n- {name: a, kind: path, path: /mnt/a, reserve: 512Mi}\n- {name: b, kind: device, device: /dev/sdb, fsType: btrfs, reserve: 0%}\n- {name: c, kind: image, size: 1073741824, reserve: 1000, preallocate: true, overcommit: 1.5}\n",
			[]pool.Options{
				{Name: "a", Kind: "path", Path: "/mnt/a", ReserveBytes: 512 << 20},
				{Name: "b", Kind: "device", Device: "/dev/sdb", FSType: "btrfs"},
				{Name: "c", Kind: "image", SizeBytes: gib, ReserveBytes: 1000, Preallocate: true, Overcommit: 1.5},
			}, "",
		},
		"an unknown key":   {"pools:\n- {name: a, kind: image, sise: 1Gi}\n", nil, `"sise"`},
		"a key twice":      {"pools:\n- {name: a, name: b}\n", nil, `"name"`},
		"no pools":         {"{}\n", nil, "at least one pool"},
		"a size of words":  {"pools:\n- {name: a, kind: image, size: much}\n", nil, "quantities must match"},
		"a reserve half":   {"pools:\n- {name: a, kind: image, size: 1Gi, reserve: half}\n", nil, `reserve "half"`},
		"a reserve of 5.5": {"pools:\n- {name: a, kind: image, size: 1Gi, reserve: 5.5%}\n", nil, "whole percentage"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "node.yaml")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := readNodeConfig(file)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), file) {
					t.Errorf("got %v, want it to say %q and name the file", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got.options(nodeOptions{}, 0, nil), cmpopts.IgnoreFields(pool.Options{}, "OnChange")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTemplatesFlag(t *testing.T) {
	c := nodeConfig{Pools: []poolConfig{{Name: "a"}}}
	on, off := c.options(nodeOptions{templates: true}, 0, nil), c.options(nodeOptions{}, 0, nil)
	if on[0].MaxTemplates != maxTemplates || off[0].MaxTemplates != 0 {
		t.Errorf("templates kept with the flag: %d, without: %d", on[0].MaxTemplates, off[0].MaxTemplates)
	}
}
