package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// phase is one step of an operation, timed so that driver time and Kubernetes
// time can be told apart.
type phase string

const (
	phaseCreate  phase = "create"
	phaseAttach  phase = "attach"
	phaseProbe   phase = "probe"
	phaseClone   phase = "clone"
	phaseMkfs    phase = "mkfs"
	phaseFsck    phase = "fsck"
	phaseUUID    phase = "uuid"
	phaseMount   phase = "mount"
	phaseGrow    phase = "grow"
	phasePublish phase = "publish"
	phaseUnmount phase = "unmount"
	phaseDetach  phase = "detach"
	phaseReclaim phase = "reclaim"
)

func newPhases() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csi_ublk_node_phase_duration_seconds",
		Help:    "Duration of the phases of staging, publishing and their reverse, failed ones included.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"phase", "delete_kind"})
}

func newFallbacks() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Name: "csi_ublk_node_template_fallbacks_total",
		Help: "Volumes that could not be cloned from a file-system template and were given to mkfs.",
	})
}

func (s *Service) timed(p phase, act func() error) error {
	start := time.Now()
	err := act()
	s.phases.WithLabelValues(string(p), s.o.DeleteKind()).Observe(time.Since(start).Seconds())
	return err
}
