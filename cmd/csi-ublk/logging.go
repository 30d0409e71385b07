package main

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

type loggingOptions struct {
	level  string
	format string
}

func (o *loggingOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.level, "log-level", "info", "least level that is logged: debug, info, warn or error")
	flags.StringVar(&o.format, "log-format", "json", "format of the log on stderr: json or text")
}

// install makes one handler serve log/slog and the loggers of the Kubernetes
// libraries, so that a role writes one stream in one format.
func (o *loggingOptions) install(w io.Writer) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.level)); err != nil {
		return usagef("--log-level=%s: must be debug, info, warn or error", o.level)
	}
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler
	switch o.format {
	case "json":
		handler = slog.NewJSONHandler(w, options)
	case "text":
		handler = slog.NewTextHandler(w, options)
	default:
		return usagef("--log-format=%s: must be json or text", o.format)
	}
	logger := slog.New(handler)
	slog.SetDefault(logger)
	klog.SetSlogLogger(logger)
	ctrl.SetLogger(logr.FromSlogHandler(handler))
	return nil
}
