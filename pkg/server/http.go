package server

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// handler serves /healthz, /readyz and /metrics.
//
// /healthz fails never: nothing is healed by killing a server, and every device
// of the node would wait for its successor. A wedged kernel shows in /readyz.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if m := s.kernel.wedgedMessage(); m != "" {
			http.Error(w, "kernel wedged: "+m, http.StatusServiceUnavailable)
			return
		}
		if !s.adopted.Load() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}
