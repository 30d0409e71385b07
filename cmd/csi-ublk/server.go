package main

import (
	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/pkg/server"
)

// newServerCommand is the device server. It logs through log/slog's default, as
// the root command has set it up.
func newServerCommand() *cobra.Command {
	var o server.Options
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Serve volumes as ublk devices to the node plugin",
		Long: `server turns the files of this node's pools into ublk devices, for the node
plugin that calls it on a unix socket. It needs root, the ublk_drv module, the
host's /dev and PID namespace, and must not see the directories in which the
volumes are mounted.

Ending it ends no device: I/O waits until the next server takes over.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Version = buildVersion()
			return server.Run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.StateDir, "state-dir", "/var/lib/csi-ublk", "directory of the pools and of the server's state")
	f.StringVar(&o.Socket, "socket", "/run/csi-ublk/server.sock", "unix socket to serve on")
	f.StringVar(&o.HTTPAddress, "http-address", ":9810", "address of /healthz, /readyz and /metrics; empty for none")
	f.Uint32Var(&o.MaxDevices, "max-devices", 4096, "how many ublk devices the kernel may have at most, those of other servers included")
	f.IntVar(&o.Rings, "rings", 0, "ring threads of a worker; 0 for a quarter of the CPUs, from 1 to 4")
	f.DurationVar(&o.CommandTimeout, "command-timeout", 0, "when a command of the ublk driver counts as stuck; 0 for 30s")
	f.DurationVar(&o.LockPatience, "lock-patience", 0, "how long to wait for a former server to end; 0 for 1m")
	return cmd
}
