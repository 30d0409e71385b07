package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/test/vm/kube"
)

// toolCommand lets scripts use a program that the rig builds for its clusters.
func toolCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:     "tool PROGRAM",
		Short:   "Print the path of one of the cluster's programs, built if need be",
		Example: "  $(vm tool helm) lint charts/csi-ublk",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var known []string
			for _, set := range kube.Sets {
				known = slices.AppendSeq(known, maps.Keys(set.Programs))
				if _, ok := set.Programs[args[0]]; !ok {
					continue
				}
				h, err := open()
				if err != nil {
					return err
				}
				repo, err := kube.Repo()
				if err != nil {
					return err
				}
				built, err := kube.Build(cmd.Context(), h, repo, set)
				if err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), built.Path(args[0]))
				return nil
			}
			slices.Sort(known)
			return fmt.Errorf("no program %q; there are %s", args[0], strings.Join(known, ", "))
		},
	}
}
