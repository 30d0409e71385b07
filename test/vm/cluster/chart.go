package cluster

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kube"
)

// Release is the name and the namespace of the driver's release.
const Release = "csi-ublk"

// ChartOptions says how the chart is installed.
type ChartOptions struct {
	// Chart is the chart's directory; "" means charts/csi-ublk of the repository.
	Chart string
	// Set are values as helm's --set takes them.
	Set []string
	// Values are files of values.
	Values []string
	// Timeout bounds the wait for everything to be ready, as helm writes durations; "" means 5m.
	Timeout string
	// HideNotes leaves out the chart's notes.
	HideNotes bool
}

// InstallChart installs the chart, or upgrades the release if there is one, with helm (built if the cache lacks it), and waits
// until its pods are ready. What helm says goes to out.
func (i Inside) InstallChart(ctx context.Context, h *host.Host, repo string, o ChartOptions, out io.Writer) error {
	helm, err := kube.Build(ctx, h, repo, kube.Helm)
	if err != nil {
		return err
	}
	if o.Chart == "" {
		o.Chart = filepath.Join(repo, "charts", "csi-ublk")
	}
	if o.Timeout == "" {
		o.Timeout = "5m"
	}
	args := []string{helm.Path("helm"), "upgrade", "--install", Release, o.Chart, "--namespace", Release, "--create-namespace", "--wait", "--timeout", o.Timeout}
	if o.HideNotes {
		args = append(args, "--hide-notes")
	}
	for _, v := range o.Values {
		args = append(args, "--values", v)
	}
	for _, s := range o.Set {
		args = append(args, "--set", s)
	}
	if err := i.Run(ctx, nil, out, out, args...); err != nil {
		return fmt.Errorf("install chart %s: %w", o.Chart, err)
	}
	return nil
}
