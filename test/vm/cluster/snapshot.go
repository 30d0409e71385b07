package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csi-ublk/csi-ublk/test/vm/kube"
)

// startSnapshots makes the cluster one with snapshots: the CRDs of their API, and its controller beside the rest of the control
// plane.
func (c *Cluster) startSnapshots(ctx context.Context) error {
	dir, err := kube.SnapshotCRDs(ctx, c.spec.Repo)
	if err != nil {
		return err
	}
	if _, err := envtest.InstallCRDs(c.config, envtest.CRDInstallOptions{Paths: []string{dir}, ErrorIfPathMissing: true}); err != nil {
		return fmt.Errorf("install the snapshot API's CRDs: %w", err)
	}
	started, err := c.netns.start(filepath.Join(c.dir, "logs"), "snapshot-controller", c.programs.kubernetes.Path("snapshot-controller"),
		"--kubeconfig="+c.Kubeconfig(), "--leader-election=false", "--kube-api-qps=100", "--kube-api-burst=200", "--v=2")
	if err != nil {
		return err
	}
	c.control = append(c.control, started)
	return nil
}
