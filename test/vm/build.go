package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/root"
)

func kernelCommand(open opener) *cobra.Command {
	var accel string
	var update bool
	cmd := &cobra.Command{
		Use:   "kernel [current|fixed|lts]...",
		Short: "Make kernels ready, and say what they are",
		Long: `Makes the named kernels ready in the cache (all of them without a name) and prints what they are.

  current  the newest kernel of the stable release's backports
  fixed    the same, its ublk driver changed to delete devices outside of the global lock
  lts      the stable release's own kernel`,
		Example: "  vm kernel current fixed\n  vm kernel --update",
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := open()
			if err != nil {
				return err
			}
			if update {
				if err := kernel.Forget(h); err != nil {
					return err
				}
			}
			variants := kernel.Variants
			if len(args) > 0 {
				variants = nil
				for _, a := range args {
					v, err := kernel.ParseVariant(a)
					if err != nil {
						return err
					}
					variants = append(variants, v)
				}
			}
			for _, v := range variants {
				a, err := guest.Choose(cmd.Context(), h, accel, v)
				if err != nil {
					return err
				}
				k, err := kernel.Get(cmd.Context(), h, v, a.Machine())
				if err != nil {
					return err
				}
				note := ""
				if k.Note != "" {
					note = "; note: " + k.Note
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%-8s %s by %s: %s%s\n         %s\n", v, k.Release, a, k.Source, note, k.Image)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&accel, "accel", "", "kvm, uml, tcg or auto (default $VM_ACCEL)")
	cmd.Flags().BoolVar(&update, "update", false, "ask the archive for newer versions now (otherwise once a week)")
	return cmd
}

func rootFSCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "root",
		Short: "Make the root file system of single guests ready",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := open()
			if err != nil {
				return err
			}
			path, err := root.Build(cmd.Context(), h, root.Spec{})
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), path)
			return nil
		},
	}
}
