package main

import (
	"os"
	"strings"
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/controller"
	"github.com/csi-ublk/csi-ublk/pkg/driver/limits"
	"github.com/csi-ublk/csi-ublk/pkg/driver/node"
)

// A parameter that the code reads and nobody describes would be an empty cell.
func TestEveryParameterIsDescribed(t *testing.T) {
	for kind, list := range map[string][]driver.Parameter{"class": controller.Reference(), "limit": limits.Reference(), "inline": node.Reference()} {
		if len(list) == 0 {
			t.Errorf("no %s parameter", kind)
		}
		for _, p := range list {
			if p.Key == "" || p.Values == "" || p.Unset == "" || p.Unset == "``" || p.Does == "" {
				t.Errorf("%s parameter %+v", kind, p)
			}
		}
	}
}

func TestTheReferenceIsCurrent(t *testing.T) {
	var want strings.Builder
	write(&want)
	got, err := os.ReadFile("../../docs/parameters.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Error("docs/parameters.md is not what the code says: run make generate")
	}
}
