package metadata

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// NodeServerOptions configures a NodeServer. All fields but Logger are required.
type NodeServerOptions struct {
	// Listen is the TCP address, as ":9812".
	Listen string
	// Service answers.
	Service csi.SnapshotMetadataServer
	// Reviews asks the API server about the callers' tokens, and should be slow to:
	// everybody in the cluster can reach the port.
	Reviews authenticationclient.TokenReviewInterface
	// Client is the user that may call:
	// system:serviceaccount:<namespace>:<service account>.
	Client string
	// Logger gets one line a call. nil means slog.Default().
	Logger *slog.Logger
}

// NodeServer serves a node's snapshot metadata to the forwarder.
type NodeServer struct {
	*driver.Server
	// CertificateSHA256 is the fingerprint of its certificate, in hex, which the
	// UblkNode is to have.
	CertificateSHA256 string
}

// NewNodeServer makes a key and builds the server; Start opens the port.
func NewNodeServer(o NodeServerOptions) (*NodeServer, error) {
	if o.Client == "" {
		return nil, errors.New("snapshot metadata server: no user that may call")
	}
	certificate, err := newCertificate()
	if err != nil {
		return nil, fmt.Errorf("snapshot metadata server: %w", err)
	}
	r := &reviewer{reviews: o.Reviews, user: o.Client}
	s, err := driver.NewServer(driver.ServerOptions{
		Listen: func() (net.Listener, error) {
			l, err := net.Listen("tcp", o.Listen)
			if err != nil {
				return nil, fmt.Errorf("listen for snapshot metadata: %w", err)
			}
			return l, nil
		},
		SnapshotMetadata: o.Service,
		Logger:           o.Logger,
		More: []grpc.ServerOption{
			grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})),
			grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				if err := r.check(s.Context()); err != nil {
					return err
				}
				return next(srv, s)
			}),
			// Strangers get little.
			grpc.MaxRecvMsgSize(64 << 10), grpc.MaxConcurrentStreams(16), grpc.ConnectionTimeout(10 * time.Second),
		},
	})
	if err != nil {
		return nil, err
	}
	return &NodeServer{Server: s, CertificateSHA256: fingerprint(certificate.Certificate[0])}, nil
}
