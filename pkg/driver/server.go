package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// ServerOptions configures a Server.
type ServerOptions struct {
	// Endpoint is the unix socket, as ParseEndpoint takes it.
	Endpoint string
	// Listen opens the listener instead, for a server that is no CSI endpoint and
	// needs no Identity.
	Listen func() (net.Listener, error)
	// More are options of the gRPC server, such as its credentials. Interceptors in
	// them come after the driver's own.
	More []grpc.ServerOption
	// Identity is required; the other services are offered where not nil.
	Identity         csi.IdentityServer
	Controller       csi.ControllerServer
	Group            csi.GroupControllerServer
	Node             csi.NodeServer
	SnapshotMetadata csi.SnapshotMetadataServer
	// Gate refuses calls by returning an error, given the full method name; it
	// is asked before every call but those of the identity service. nil lets
	// all pass.
	Gate func(method string) error
	// Logger gets one line a call. nil means slog.Default().
	Logger *slog.Logger
	// Registerer gets the call metrics. nil means none are kept.
	Registerer prometheus.Registerer
	// StopTimeout bounds how long calls in flight may go on after Start's context
	// ended; then they are cut. 0 means 10 s.
	StopTimeout time.Duration
}

// Server serves CSI on a unix socket, or where Listen says. It is a Runnable for a controller-runtime
// manager, and needs no leader election of its own: Gate decides.
type Server struct {
	o    ServerOptions
	grpc *grpc.Server
}

// NewServer checks the options and builds the server; Start opens the socket.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Listen == nil {
		if _, err := ParseEndpoint(o.Endpoint); err != nil {
			return nil, err
		}
		if o.Identity == nil {
			return nil, errors.New("csi server: no identity service")
		}
		o.Listen = func() (net.Listener, error) { return Listen(o.Endpoint) }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = 10 * time.Second
	}
	i, err := newInterceptor(o.Logger, o.Registerer, o.Gate)
	if err != nil {
		return nil, err
	}
	s := &Server{o: o, grpc: grpc.NewServer(append([]grpc.ServerOption{grpc.UnaryInterceptor(i.unary), grpc.StreamInterceptor(i.stream)}, o.More...)...)}
	if o.Identity != nil {
		csi.RegisterIdentityServer(s.grpc, o.Identity)
	}
	if o.Controller != nil {
		csi.RegisterControllerServer(s.grpc, o.Controller)
	}
	if o.Group != nil {
		csi.RegisterGroupControllerServer(s.grpc, o.Group)
	}
	if o.Node != nil {
		csi.RegisterNodeServer(s.grpc, o.Node)
	}
	if o.SnapshotMetadata != nil {
		csi.RegisterSnapshotMetadataServer(s.grpc, o.SnapshotMetadata)
	}
	return s, nil
}

// Start serves until ctx ends, then lets the calls in flight finish for at most
// StopTimeout. When it returns no call runs and the socket is gone. A Server
// can't be started twice.
func (s *Server) Start(ctx context.Context) error {
	l, err := s.o.Listen()
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(l) }()
	select {
	case err := <-served:
		if err == nil { // Kill
			return nil
		}
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	// GracefulStop waits for handlers without limit; Stop cuts them, and makes
	// GracefulStop return.
	cut := time.AfterFunc(s.o.StopTimeout, s.grpc.Stop)
	defer cut.Stop()
	s.grpc.GracefulStop()
	<-served
	return nil
}

// Kill ends the server at once: calls in flight are cut and their contexts
// cancelled. Start then returns nil.
func (s *Server) Kill() { s.grpc.Stop() }

// NeedLeaderElection makes a manager start the server on every replica: the
// sidecars need an answer to Probe before there is a lease.
func (s *Server) NeedLeaderElection() bool { return false }
