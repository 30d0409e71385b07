package driver

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// interceptor is what every call passes: the gate, the recovery from panics, the
// map to gRPC codes, the metrics and the one line of log.
type interceptor struct {
	log      *slog.Logger
	gate     func(method string) error
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
}

func newInterceptor(log *slog.Logger, reg prometheus.Registerer, gate func(string) error) (*interceptor, error) {
	i := &interceptor{
		log:  log,
		gate: gate,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "csi_ublk_rpc_duration_seconds",
			Help: "Duration of CSI calls by method and gRPC code.",
			// From a cached answer (0.1 ms) to kubelet's deadline (2 min).
			Buckets: []float64{.0001, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}, []string{"method", "code"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "csi_ublk_rpc_in_flight",
			Help: "CSI calls that have not been answered yet, by method.",
		}, []string{"method"}),
	}
	if reg == nil {
		return i, nil
	}
	for _, c := range []prometheus.Collector{i.duration, i.inFlight} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register call metrics: %w", err)
		}
	}
	return i, nil
}

// quiet are the calls that kubelet and the sidecars make all the time; when they
// succeed, only debug shows them.
var quiet = map[string]bool{
	"Probe": true, "GetPluginInfo": true, "GetPluginCapabilities": true,
	"ControllerGetCapabilities": true, "GetCapacity": true, "ListVolumes": true, "ControllerGetVolume": true,
	"NodeGetCapabilities": true, "NodeGetInfo": true, "NodeGetVolumeStats": true,
}

func (i *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	err = i.measured(ctx, info.FullMethod, func() any { return req }, func() (err error) {
		resp, err = handler(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// stream is for calls with one request and a stream of answers.
func (i *interceptor) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	r := &requestKept{ServerStream: s}
	return i.measured(s.Context(), info.FullMethod, func() any { return r.request }, func() error { return handler(srv, r) })
}

// requestKept is a stream that keeps the last request, for the log.
type requestKept struct {
	grpc.ServerStream
	request any
}

func (r *requestKept) RecvMsg(m any) error {
	r.request = m
	return r.ServerStream.RecvMsg(m)
}

// measured runs a call with all that is around it.
func (i *interceptor) measured(ctx context.Context, method string, request func() any, handler func() error) error {
	op := path.Base(method)
	start := time.Now()
	inFlight := i.inFlight.WithLabelValues(op)
	inFlight.Inc()
	defer inFlight.Dec()

	err := ToStatus(i.call(ctx, method, handler))

	took := time.Since(start)
	i.duration.WithLabelValues(op, Code(err).String()).Observe(took.Seconds())
	i.report(ctx, op, request(), took, err)
	return err
}

// call runs the handler; a panic in it costs this call only.
func (i *interceptor) call(ctx context.Context, method string, handler func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			i.log.ErrorContext(ctx, "panic in CSI call", "op", path.Base(method), "panic", p, "stack", string(debug.Stack()))
			err = status.Errorf(codes.Internal, "%s: panic: %v", path.Base(method), p)
		}
	}()
	if i.gate != nil && !strings.HasPrefix(method, "/csi.v1.Identity/") {
		if err := i.gate(method); err != nil {
			return err
		}
	}
	return handler()
}

func (i *interceptor) report(ctx context.Context, op string, req any, took time.Duration, err error) {
	level := slog.LevelInfo
	switch code := Code(err); {
	case code == codes.OK && quiet[op]:
		level = slog.LevelDebug
	case code == codes.Internal, code == codes.Unknown, code == codes.DataLoss:
		level = slog.LevelError
	case code != codes.OK:
		level = slog.LevelWarn
	}
	if !i.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("op", op), slog.Duration("duration", took), slog.String("code", Code(err).String())}
	if kind, id := subjectOf(req); id != "" {
		attrs = append(attrs, slog.String(kind, id))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", status.Convert(err).Message()))
	}
	if i.log.Enabled(ctx, slog.LevelDebug) {
		attrs = append(attrs, slog.Any("request", sanitized{req}))
	}
	i.log.LogAttrs(ctx, level, "csi call", attrs...)
}

// subjectOf is what a request is about.
func subjectOf(req any) (kind, id string) {
	switch r := req.(type) {
	case interface{ GetVolumeId() string }:
		return "volume", r.GetVolumeId()
	case interface{ GetName() string }:
		return "volume", r.GetName()
	case interface{ GetTargetSnapshotId() string }:
		return "snapshot", r.GetTargetSnapshotId()
	case interface{ GetSnapshotId() string }:
		return "snapshot", r.GetSnapshotId()
	}
	return "", ""
}
