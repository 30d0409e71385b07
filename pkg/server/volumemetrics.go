package server

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// volumeCollector reads the counters of all volumes when it is scraped, so that
// volumes cost nothing in between and leave no series behind.
type volumeCollector struct{ server *Server }

var (
	opsDesc    = volumeDesc("volume_operations_total", "Requests served.", "operation")
	bytesDesc  = volumeDesc("volume_bytes_total", "Bytes of the requests served.", "operation")
	errorsDesc = volumeDesc("volume_errors_total", "Requests that failed.", "operation")
	timeDesc   = volumeDesc("volume_service_seconds_total", "Time that requests spent in the worker.", "operation")
	waitDesc   = volumeDesc("volume_throttled_seconds_total", "Time that requests waited because of limits, part of the time in the worker.")
	failedDesc = volumeDesc("volume_failed", "1 if the volume lost a flush and answers EIO until it is detached.")
	stateDesc  = prometheus.NewDesc("csi_ublk_server_devices", "Attached volumes by state.", []string{"state"}, nil)
	goneDesc   = prometheus.NewDesc("csi_ublk_server_releasing_devices", "Stopped devices that the kernel has not let go of.", nil, nil)
	kernelDesc = prometheus.NewDesc("csi_ublk_server_kernel_info", "What the kernel is.", []string{"release", "delete_kind"}, nil)
	usedDesc   = prometheus.NewDesc("csi_ublk_server_kernel_devices", "All ublk devices of the kernel.", nil, nil)
	maxDesc    = prometheus.NewDesc("csi_ublk_server_devices_max", "How many devices this server takes.", nil, nil)
)

func volumeDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("csi_ublk_"+name, help, append([]string{"volume"}, labels...), nil)
}

func (c volumeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{opsDesc, bytesDesc, errorsDesc, timeDesc, waitDesc, failedDesc, stateDesc, goneDesc, kernelDesc, usedDesc, maxDesc} {
		ch <- d
	}
}

func (c volumeCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.server
	states := make(map[serverv1.Device_State]int)
	type sample struct {
		volume string
		slot   uint32
	}
	var samples []sample
	s.table.mu.Lock()
	for id, v := range s.table.volumes {
		states[v.state]++
		if v.state != serverv1.Device_ATTACHING {
			samples = append(samples, sample{id, v.slot})
		}
	}
	releasing := len(s.table.releasing)
	s.table.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for n, name := range serverv1.Device_State_name {
		if n != 0 {
			gauge(stateDesc, float64(states[serverv1.Device_State(n)]), strings.ToLower(name))
		}
	}
	gauge(goneDesc, float64(releasing))
	gauge(maxDesc, float64(s.options.MaxDevices))
	gauge(kernelDesc, 1, kernelRelease(), s.kernel.deleteKind().String())
	if ids, err := ublk.Devices(); err == nil {
		gauge(usedDesc, float64(len(ids)))
	}
	for _, x := range samples {
		if counters, err := s.counters.At(x.slot); err == nil {
			collectVolume(ch, x.volume, counters)
			ch <- prometheus.MustNewConstMetric(waitDesc, prometheus.CounterValue, float64(counters.ThrottledNanos.Load())/1e9, x.volume)
			gauge(failedDesc, float64(counters.Failed.Load()), x.volume)
		}
	}
}

func collectVolume(ch chan<- prometheus.Metric, volume string, c *ublk.Counters) {
	for _, o := range []struct {
		name                     string
		ops, bytes, errors, time uint64
	}{
		{"read", c.Reads.Load(), c.ReadBytes.Load(), c.ReadErrors.Load(), c.ReadNanos.Load()},
		{"write", c.Writes.Load(), c.WriteBytes.Load(), c.WriteErrors.Load(), c.WriteNanos.Load()},
		{"flush", c.Flushes.Load(), 0, c.FlushErrors.Load(), c.FlushNanos.Load()},
		{"discard", c.Discards.Load(), c.DiscardBytes.Load(), c.DiscardErrors.Load(), c.DiscardNanos.Load()},
		{"write_zeroes", c.WriteZeroes.Load(), c.WriteZeroesBytes.Load(), c.WriteZeroesErrors.Load(), c.WriteZeroesNanos.Load()},
	} {
		count := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, volume, o.name)
		}
		count(opsDesc, float64(o.ops))
		count(errorsDesc, float64(o.errors))
		count(timeDesc, float64(o.time)/1e9)
		if o.name != "flush" {
			count(bytesDesc, float64(o.bytes))
		}
	}
}
