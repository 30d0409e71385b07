//go:build ublk && linux

package blockdev

import (
	"os"
	"path/filepath"
	"testing"
)

// A loop device that is younger than a container's /dev has no node there.
func TestALoopDeviceWithoutANodeGetsOne(t *testing.T) {
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	device, err := AttachLoop(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := DetachLoop(device); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(device); err != nil {
		t.Fatal(err)
	}
	again, err := AttachLoop(image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := DetachLoop(again); err != nil {
			t.Error(err)
		}
	})
	if again != device {
		t.Fatalf("the free loop device is %s, it was %s: the test proves nothing", again, device)
	}
	if size, err := Size(again); err != nil || size != 1<<20 {
		t.Errorf("%s has %d bytes, %v", again, size, err)
	}
}
