package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

type blocksOptions struct {
	endpoint string
	base     string
	from     int64
}

// newBlocksCommand asks the metadata role as the sidecar does.
func newBlocksCommand() *cobra.Command {
	var o blocksOptions
	cmd := &cobra.Command{
		Use:   "blocks SNAPSHOT",
		Short: "List which blocks of a snapshot have changed",
		Long: `blocks asks "csi-ublk metadata" which ranges of a snapshot, a UblkSnapshot, hold
data, or which of them may have changed since an earlier one. It prints one line a
range: offset and length, in bytes. Run it where that role runs:

  kubectl -n csi-ublk exec deploy/csi-ublk-metadata -- csi-ublk blocks --base BEFORE AFTER`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return listBlocks(cmd.Context(), o, args[0], cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.endpoint, "endpoint", "unix:///csi/csi.sock", "unix socket of the metadata role")
	f.StringVar(&o.base, "base", "", "the earlier snapshot; empty for all that hold data")
	f.Int64Var(&o.from, "from", 0, "byte to begin at")
	return cmd
}

func listBlocks(ctx context.Context, o blocksOptions, snapshot string, out io.Writer) error {
	socket, err := driver.ParseEndpoint(o.endpoint)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", o.endpoint, err)
	}
	defer conn.Close()
	c := csi.NewSnapshotMetadataClient(conn)
	var next func() ([]*csi.BlockMetadata, error)
	if o.base == "" {
		s, err := c.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: snapshot, StartingOffset: o.from})
		if err != nil {
			return err
		}
		next = func() ([]*csi.BlockMetadata, error) { m, err := s.Recv(); return m.GetBlockMetadata(), err }
	} else {
		s, err := c.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: o.base, TargetSnapshotId: snapshot, StartingOffset: o.from})
		if err != nil {
			return err
		}
		next = func() ([]*csi.BlockMetadata, error) { m, err := s.Recv(); return m.GetBlockMetadata(), err }
	}
	w := bufio.NewWriter(out)
	for {
		blocks, err := next()
		if errors.Is(err, io.EOF) {
			return w.Flush()
		}
		if err != nil {
			return errors.Join(w.Flush(), err)
		}
		for _, b := range blocks {
			fmt.Fprintln(w, b.ByteOffset, b.SizeBytes)
		}
	}
}
