package image

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kube"
)

// NewCommand returns "image", which writes the driver's image to a file. open opens the host.
func NewCommand(open func() (*host.Host, error)) *cobra.Command {
	var o DriverOptions
	var out string
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Build the driver's image as an archive, without docker or a registry",
		Long: `image builds the driver's image from this tree and Debian packages and writes it to
one archive, which is a docker save and an OCI layout at once:

  docker load -i out/csi-ublk-image.tar
  kind load image-archive out/csi-ublk-image.tar
  ctr -n k8s.io images import out/csi-ublk-image.tar

It needs root (mmdebstrap unpacks the packages), apt sources of Debian and Go.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := open()
			if err != nil {
				return err
			}
			repo, err := kube.Repo()
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "csi-ublk-image")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			i, err := Driver(cmd.Context(), h, repo, dir, o)
			if err != nil {
				return err
			}
			if out == "" {
				out = filepath.Join(repo, "out", "csi-ublk-image.tar")
			}
			if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
				return err
			}
			if err := Write(out, i); err != nil {
				return err
			}
			st, err := os.Stat(out)
			if err != nil {
				return err
			}
			digest, err := i.Digest()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s (%d MB, %s) in %s\n", i.Names[0], st.Size()/1e6, digest, out)
			return nil
		},
	}
	cmd.AddCommand(newSuiteCommand(open))
	cmd.Flags().StringVar(&out, "output", "", "archive to write (default out/csi-ublk-image.tar in the repository)")
	cmd.Flags().StringVar(&o.Tag, "tag", "", "tag of the image (default the chart's appVersion)")
	cmd.Flags().BoolVar(&o.Race, "race", false, "build the driver with the race detector")
	return cmd
}

// newSuiteCommand returns "image suite".
func newSuiteCommand(open func() (*host.Host, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "suite AGNHOST ARCHIVE",
		Short: "Write the images that Kubernetes' storage tests run; AGNHOST is the program of that name",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := open()
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "csi-ublk-image")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			images, err := External(cmd.Context(), h, args[0], dir)
			if err != nil {
				return err
			}
			return Write(args[1], images...)
		},
	}
}
