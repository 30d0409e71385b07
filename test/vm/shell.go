package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/root"
)

func shellCommand(open opener) *cobra.Command {
	var f guestFlags
	cmd := &cobra.Command{
		Use:   "shell",
		Short: "A root shell in a fresh guest; the working directory is shared",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options()
			if err != nil {
				return err
			}
			h, err := open()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			accel, err := guest.Choose(ctx, h, o.Accel, o.Kernel)
			if err != nil {
				return err
			}
			k, err := kernel.Get(ctx, h, o.Kernel, accel.Machine())
			if err != nil {
				return err
			}
			image, err := root.Build(ctx, h, root.Spec{})
			if err != nil {
				return err
			}
			cwd, err := os.Getwd()
			if err != nil {
				return err
			}
			g, err := guest.Start(ctx, h, guest.Spec{
				Accel: accel, Kernel: k, Root: image, MemoryMiB: o.MemoryMiB, DataDiskBytes: o.DataDiskBytes,
				Shares: []guest.Share{{Host: cwd, Guest: "/host"}},
			})
			if err != nil {
				return err
			}
			defer g.Close()
			restore, err := rawTerminal()
			if err != nil {
				return err
			}
			defer restore()
			fmt.Fprintf(os.Stderr, "%s, %s is /host; leave with exit\r\n", k.Release, cwd)
			// script gives the shell a terminal of its own in the guest.
			_, err = g.Run(ctx, guest.Cmd{
				Args: []string{"script", "-qec", "bash -i", "/dev/null"}, Dir: "/host", Env: []string{"TERM=" + os.Getenv("TERM")},
				Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
			})
			return err
		},
	}
	f.add(cmd)
	return cmd
}

// rawTerminal hands keys on one by one, Ctrl-C among them; it does nothing if there is no terminal.
func rawTerminal() (restore func(), err error) {
	fd := int(os.Stdin.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}, nil
	}
	raw := *old
	raw.Iflag &^= unix.ICRNL | unix.IXON | unix.BRKINT | unix.INPCK | unix.ISTRIP
	raw.Lflag &^= unix.ICANON | unix.ECHO | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("set the terminal: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil
}
