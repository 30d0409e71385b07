package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// snapshotAPI is the module whose folder config/crd describes the snapshot API.
const snapshotAPI = "github.com/kubernetes-csi/external-snapshotter/client/v8"

// SnapshotCRDs returns the folder with the CRDs of the snapshot API, in the version that the cluster's snapshot-controller was
// built with. It is in Go's module cache, where the build of that has put it.
func SnapshotCRDs(ctx context.Context, repo string) (string, error) {
	text, err := host.Run(ctx, host.Command{
		Args: []string{"go", "mod", "download", "-json", snapshotAPI}, Dir: filepath.Join(repo, "test", "vm", "kube", Kubernetes.Name),
		Env: []string{"GOWORK=off", "GOFLAGS="},
	})
	if err != nil {
		return "", fmt.Errorf("find the snapshot API's CRDs: %w", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(text), &module); err != nil {
		return "", fmt.Errorf("find the snapshot API's CRDs: decode what go mod download says: %w", err)
	}
	return filepath.Join(module.Dir, "config", "crd"), nil
}
