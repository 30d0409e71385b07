package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
)

func cleanCommand(open opener) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove what killed runs left behind; with --all, the whole cache",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := open()
			if err != nil {
				return err
			}
			n, busy, err := guest.Sweep(h)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d directories of ended guests removed, %d in use\n", n, busy)
			if !all {
				return nil
			}
			if busy > 0 {
				return fmt.Errorf("the cache is in use by %d guests", busy)
			}
			entries, err := os.ReadDir(h.Cache)
			if err != nil {
				return err
			}
			for _, e := range entries {
				if err := os.RemoveAll(filepath.Join(h.Cache, e.Name())); err != nil {
					return err
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s emptied\n", h.Cache)
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove everything: the next run builds for minutes")
	return cmd
}
