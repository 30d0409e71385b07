package server

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// metrics are the server's; those of single volumes are read from the shared
// counters when they are asked for (volumemetrics.go).
type metrics struct {
	registry       *prometheus.Registry
	phase          *prometheus.HistogramVec
	commands       *prometheus.HistogramVec
	calls          *prometheus.HistogramVec
	recovery       prometheus.Histogram
	fenceWait      prometheus.Histogram
	cutHeld        prometheus.Histogram
	fences         prometheus.Gauge
	wedged         prometheus.Gauge
	leftovers      prometheus.Gauge
	workerRestarts prometheus.Counter
	recoveryErrors prometheus.Counter
	damagedEntries prometheus.Counter
	// kind is how the kernel deletes devices, a label of the phases: what they
	// take can't be compared between kernels of different kinds.
	kind atomic.Pointer[string]
}

// From 100 µs, a command on a quiet machine, to a minute.
var latencyBuckets = prometheus.ExponentialBuckets(100e-6, 2.5, 15)

func newMetrics() *metrics {
	histogram := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: "csi_ublk", Subsystem: "server", Name: name, Help: help, Buckets: latencyBuckets}
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "csi_ublk", Subsystem: "server", Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "csi_ublk", Subsystem: "server", Name: name, Help: help})
	}
	m := &metrics{
		registry:       prometheus.NewRegistry(),
		phase:          prometheus.NewHistogramVec(histogram("phase_seconds", "Time spent in each phase of attaching and detaching a volume."), []string{"op", "phase", "delete_kind"}),
		commands:       prometheus.NewHistogramVec(histogram("control_command_seconds", "Latency of the ublk driver's control commands."), []string{"command"}),
		calls:          prometheus.NewHistogramVec(histogram("call_seconds", "Latency of the server's API calls."), []string{"method", "code"}),
		recovery:       prometheus.NewHistogram(histogram("recovery_seconds", "From the loss of a worker until a volume is served again.")),
		fenceWait:      prometheus.NewHistogram(histogram("fence_wait_seconds", "How long a dead worker's file I/O went on.")),
		cutHeld:        prometheus.NewHistogram(histogram("cut_held_seconds", "How long requests of the volumes of one cut were held back.")),
		fences:         gauge("fences", "Dead workers whose file I/O is not over; no volume of the same file system is served anew meanwhile."),
		wedged:         gauge("wedged", "1 if a control command was not answered in time: no volume is attached until one is."),
		leftovers:      gauge("leftover_devices", "Devices of this server that belong to no volume and are being deleted."),
		workerRestarts: counter("worker_restarts_total", "Worker processes that ended unasked."),
		recoveryErrors: counter("recovery_errors_total", "Attempts to recover a volume that did not succeed."),
		damagedEntries: counter("damaged_journal_entries_total", "Journal entries that could not be used and were moved aside."),
	}
	m.setKind(ublk.DeleteUnknown)
	m.registry.MustRegister(m.phase, m.commands, m.calls, m.recovery, m.fenceWait, m.cutHeld, m.fences, m.wedged, m.leftovers,
		m.workerRestarts, m.recoveryErrors, m.damagedEntries,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) setKind(k ublk.DeleteKind) {
	name := k.String()
	m.kind.Store(&name)
}

func (m *metrics) command(op string, d time.Duration) {
	m.commands.WithLabelValues(op).Observe(d.Seconds())
}

// phases returns a function that ends a phase of an operation and begins the
// next.
func (m *metrics) phases(op string) func(phase string) {
	last := time.Now()
	return func(phase string) {
		now := time.Now()
		m.phase.WithLabelValues(op, phase, *m.kind.Load()).Observe(now.Sub(last).Seconds())
		last = now
	}
}
