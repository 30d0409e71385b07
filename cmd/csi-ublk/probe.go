package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/pkg/server/probe"
)

var errNotUsable = errors.New("this machine cannot serve ublk devices")

// newProbeCommand says what this machine's kernel can do.
func newProbeCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Say what this machine's kernel can do, and what to do where it cannot",
		Long: `probe looks at the ublk driver, io_uring and /dev, and says what csi-ublk gets
from each feature of the driver. It needs root. To tell how the kernel deletes
devices it makes a few that nobody sees, and deletes them.

The exit code is 0 if csi-ublk can run here, 1 if not.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usagef("--output=%s: must be text or json", output)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			r := probe.Run(ctx, probe.Options{})
			if err := printReport(cmd.OutOrStdout(), output, r); err != nil {
				return err
			}
			if !r.Usable {
				return errNotUsable
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func printReport(w io.Writer, output string, r probe.Report) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "kernel\t%s\n", r.Kernel)
	for _, c := range r.Checks {
		mark := "ok"
		if !c.OK {
			mark = "MISSING"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", c.Name, mark, c.Detail)
		if c.Remedy != "" {
			fmt.Fprintf(t, "\t\t→ %s\n", c.Remedy)
		}
	}
	for _, f := range r.Features {
		mark := "yes"
		if !f.Offered {
			mark = "no"
			if f.Required {
				mark = "MISSING"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Name, mark, f.Gives)
	}
	if r.DeleteKind != "" {
		fmt.Fprintf(t, "deleting devices\t%s\t%s\n", r.DeleteKind, r.DeleteKindMeans)
	}
	return t.Flush()
}
