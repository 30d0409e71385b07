package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/pkg/server"
)

// newThawCommand is what a server runs, never a person: it needs the descriptor that its
// parent passes.
func newThawCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "thaw",
		Short:  "Thaw a file system whose freezer has died (started by the server)",
		Hidden: true,
		RunE:   func(*cobra.Command, []string) error { return server.Thaw(os.NewFile(server.ThawFD, "file system")) },
	}
}
