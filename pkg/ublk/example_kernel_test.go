//go:build ublk && linux

package ublk_test

import (
	"context"
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

func TestExampleRuns(t *testing.T) {
	var path string
	err := serveRAMDisk(context.Background(), func(p string) error {
		path = p
		return useDisk(p)
	})
	if err != nil || path == "" {
		t.Fatalf("path %q, %v", path, err)
	}
	if ids, err := ublk.Devices(); err != nil || len(ids) != 0 {
		t.Errorf("left over: %v, %v", ids, err)
	}
}
