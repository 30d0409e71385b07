package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
)

// newWorkerCommand is what a server runs, never a person: it needs the
// descriptors that its parent passes.
func newWorkerCommand() *cobra.Command {
	var o worker.Options
	cmd := &cobra.Command{
		Use:    "worker",
		Short:  "Move the bytes of a server's devices (started by the server)",
		Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			o.Socket = os.NewFile(worker.SocketFD, "server")
			o.Counters = os.NewFile(worker.CountersFD, "counters")
			return worker.Run(o)
		},
	}
	cmd.Flags().StringVar(&o.FencePath, "fence", "", "named pipe that tells when this process's I/O is over")
	cmd.Flags().IntVar(&o.Rings, "rings", 0, "ring threads; 0 for a quarter of the CPUs, from 1 to 4")
	if err := cmd.MarkFlagRequired("fence"); err != nil {
		panic(err) // there is no such flag: a typing error in the line above
	}
	return cmd
}
