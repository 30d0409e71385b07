package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/metadata"
)

type metadataRoleOptions struct {
	endpoint    string
	httpAddress string
	tokenFile   string
	kubeconfig  string
}

// newMetadataCommand is the metadata role.
func newMetadataCommand() *cobra.Command {
	var o metadataRoleOptions
	cmd := &cobra.Command{
		Use:   "metadata",
		Short: "Tell which blocks of snapshots have changed",
		Long: `metadata is the CSI snapshot metadata service, beside the sidecar that calls it.
It finds the node of a snapshot and asks there: the node plugin answers where it
runs with --snapshot-metadata-address. It keeps nothing and any number may run.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runMetadata(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.endpoint, "endpoint", cmp.Or(os.Getenv("CSI_ENDPOINT"), "unix:///csi/csi.sock"), "unix socket of the CSI service; CSI_ENDPOINT in the environment")
	f.StringVar(&o.httpAddress, "http-address", ":9811", "address of /healthz, /readyz and /metrics; 0 for none")
	f.StringVar(&o.tokenFile, "token-file", "/var/run/secrets/csi-ublk.io/token", "file with a token of the service account for "+metadata.Audience+", to show to nodes")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; empty for the pod's service account")
	return cmd
}

func runMetadata(ctx context.Context, o metadataRoleOptions) error {
	kube, err := kubeConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return fmt.Errorf("make scheme: %w", err)
	}
	reader, err := client.New(kube, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	server, err := driver.NewServer(driver.ServerOptions{
		Endpoint:         o.endpoint,
		Identity:         driver.NewIdentity(driver.IdentityOptions{Version: buildVersion(), SnapshotMetadata: true}),
		SnapshotMetadata: &metadata.Forwarder{Client: reader, TokenFile: o.tokenFile},
		Registerer:       metrics.Registry,
	})
	if err != nil {
		return err
	}
	parts := newParts(ctx)
	parts.after("http", func(ctx context.Context) error {
		return serveHTTP(ctx, o.httpAddress, func(context.Context) error { return nil })
	})
	parts.first("csi", server.Start)
	return parts.wait(func(context.Context) error { return nil })
}
