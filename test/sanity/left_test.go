//go:build sanity

package sanity

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// endpoint is the socket that an environment variable names.
func endpoint(t *testing.T, variable string) string {
	t.Helper()
	socket := os.Getenv(variable)
	if socket == "" {
		t.Fatalf("set %s to the socket of the CSI service; make test-sanity does", variable)
	}
	return "unix://" + socket
}

// nothingLeft fails if csi-sanity left volumes, snapshots, devices or mounts behind. The
// kernel's devices are deleted in the background, so they get some time.
func nothingLeft(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient(endpoint(t, "SANITY_CONTROLLER"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	controller := csi.NewControllerClient(conn)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		volumes, err := controller.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		snapshots, err := controller.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		devices, err := os.ReadDir("/sys/class/ublk-char")
		if err != nil {
			t.Fatal(err)
		}
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			t.Fatal(err)
		}
		mounted := strings.Contains(string(mounts), "/dev/ublkb")
		if len(volumes.Entries) == 0 && len(snapshots.Entries) == 0 && len(devices) == 0 && !mounted {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: volumes %v, snapshots %v, %d devices, mounts: %t", volumes.Entries, snapshots.Entries, len(devices), mounted)
		}
	}
}
