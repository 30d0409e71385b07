package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csi-ublk/csi-ublk/pkg/pool"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// nodeHealth serves the node role's /healthz, /readyz and /metrics.
type nodeHealth struct {
	pools      *pool.Set
	devices    *serverclient.Client
	registered atomic.Bool
}

func newNodeHealth(pools *pool.Set, devices *serverclient.Client) *nodeHealth {
	return &nodeHealth{pools: pools, devices: devices}
}

// ready says what keeps the node from taking volumes, as its UblkNode does: one pool of
// several that can't be opened is that pool's matter. Nothing of it is healed by a
// restart, so /healthz does not ask.
func (h *nodeHealth) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := h.devices.Info(ctx); err != nil {
		return fmt.Errorf("the device server does not answer: %w", err)
	}
	var closed []error
	states := h.pools.States()
	for _, s := range states {
		if s.Err != nil {
			closed = append(closed, s.Err)
		}
	}
	if len(closed) == len(states) {
		return errors.Join(closed...)
	}
	if !h.registered.Load() {
		return errors.New("not registered with kubelet yet")
	}
	return nil
}

func (h *nodeHealth) serve(ctx context.Context, address string) error {
	return serveHTTP(ctx, address, h.ready)
}

// serveHTTP serves /healthz, /readyz and /metrics of a role until ctx ends; on no
// address, "" or "0", it only waits.
func serveHTTP(ctx context.Context, address string, ready func(context.Context) error) error {
	if address == "" || address == "0" {
		<-ctx.Done()
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{}))
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = server.Close()
	})
	err := server.ListenAndServe()
	if !stop() {
		<-stopped
		return nil
	}
	return fmt.Errorf("serve http on %s: %w", address, err)
}
