package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/pkg/bench"
)

// newBenchCommand holds what measures.
func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what this machine's kernel and csi-ublk do",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(cmd.ErrOrStderr())
			_ = cmd.Help()
			return usagef("name what to do")
		},
	}
	cmd.AddCommand(newBenchChurnCommand(), newBenchReportCommand())
	return cmd
}

// addOutputFlag adds -o.
func addOutputFlag(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVarP(format, "output", "o", bench.FormatText, strings.Join(bench.Formats, ", "))
}

func checkOutput(format string) error {
	if !slices.Contains(bench.Formats, format) {
		return usagef("--output=%s: must be %s", format, strings.Join(bench.Formats, ", "))
	}
	return nil
}

// newBenchChurnCommand measures.
func newBenchChurnCommand() *cobra.Command {
	var o bench.Options
	var output string
	cmd := &cobra.Command{
		Use:   "churn",
		Short: "Measure how many devices and volumes can come and go",
		Long: `churn measures pod churn on this machine, in five tables:

  kernel     STOP and DEL of many null devices, in the order of most programs and
             in that of csi-ublk, from several callers
  lifecycle  the commands of a device's life; by the device server, and bare
  growth     whether that gets slower beside many idle devices
  idle       what an idle device costs in memory, threads and descriptors
  node       the CSI calls that a pod's start and end wait for, beside loop devices

It needs root and the ublk driver (csi-ublk probe), runs a device server of its
own, touches no device but its own, and removes what it made, also on Ctrl-C. With
the defaults it takes hours on slow machines: see --rounds, --devices, --others,
--idle and --pods. Progress goes to stderr. -o json keeps the samples, for
"csi-ublk bench report" to merge runs of several rounds and kernels.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			o.Version, o.Progress = buildVersion(), cmd.ErrOrStderr()
			report, err := bench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			merged, err := bench.Merge(report)
			if err != nil {
				return err
			}
			return merged.Render(cmd.OutOrStdout(), output, "")
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.Tables, "tables", bench.Tables, "tables to measure")
	f.IntVar(&o.Rounds, "rounds", 5, "how often to measure all; the ways take turns")
	f.IntVar(&o.FirstRound, "first-round", 0, "number of the first round, which decides who begins; for runs of one round each")
	f.IntVar(&o.Devices, "devices", 4000, "devices of a wave of the table kernel")
	f.IntSliceVar(&o.Threads, "threads", []int{1, 4, 8, 16}, "callers of the table kernel")
	f.IntVar(&o.Volumes, "volumes", 200, "volumes of a wave of the tables lifecycle and growth")
	f.IntSliceVar(&o.InFlight, "in-flight", []int{1, 4, 16, 64}, "how many at a time, of the table lifecycle")
	f.IntSliceVar(&o.Others, "others", []int{0, 1000, 4000}, "idle devices beside, of the table growth")
	f.IntSliceVar(&o.Idle, "idle", []int{1000, 4000}, "devices that the table idle looks at")
	f.IntSliceVar(&o.Pods, "pods", []int{1, 16, 64, 200}, "pods in flight, of the table node")
	f.StringSliceVar(&o.FSTypes, "fs", []string{"ext4", "xfs"}, "file systems of the table node")
	f.StringVar(&o.Dir, "dir", "/var/tmp", "directory to make volumes in")
	f.StringVar(&o.Label, "label", "", "name of this run; empty for kernel and kind of DEL_DEV. Runs with one label merge")
	f.StringVar(&o.Machine, "machine", "", "what the kernel runs on, if it does not show")
	addOutputFlag(cmd, &output)
	return cmd
}

// newBenchReportCommand merges.
func newBenchReportCommand() *cobra.Command {
	var output, base string
	cmd := &cobra.Command{
		Use:     "report FILE...",
		Short:   "Merge what bench churn -o json wrote into one report",
		Example: "  csi-ublk bench report locked-1.json locked-2.json unlocked-1.json -o markdown",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("name the files that bench churn -o json wrote")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			merged, err := readReports(args)
			if err != nil {
				return err
			}
			return merged.Render(cmd.OutOrStdout(), output, base)
		},
	}
	cmd.Flags().StringVar(&base, "base", "", "label that all others are compared with, series by series")
	addOutputFlag(cmd, &output)
	return cmd
}
