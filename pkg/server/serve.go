package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

// listen opens the API's socket for root only. A socket that a dead server left
// behind is replaced; one that somebody answers on is not.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("listen on %s: another server answers there", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

func newGRPC(log *slog.Logger, s *Server) *grpc.Server {
	g := grpc.NewServer(
		grpc.Creds(rootOnly{}),
		grpc.UnaryInterceptor(intercept(log, s.metrics)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
	)
	serverv1.RegisterDevicesServer(g, &api{server: s})
	return g
}

// intercept logs what fails, and turns a panic into an error of one call: the
// server must go on, since every device of the node depends on it.
func intercept(log *slog.Logger, m *metrics) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
		op := filepath.Base(info.FullMethod)
		start := time.Now()
		defer func() {
			if p := recover(); p != nil {
				log.Error("call panicked", "op", op, "panic", p, "stack", string(debug.Stack()))
				err = status.Errorf(codes.Internal, "%s panicked: %v", op, p)
			}
			m.calls.WithLabelValues(op, status.Code(err).String()).Observe(time.Since(start).Seconds())
			switch status.Code(err) {
			case codes.OK, codes.NotFound: // whether a volume is attached is a question, not a failure
			default:
				log.Warn("call failed", "op", op, "code", status.Code(err).String(), "error", status.Convert(err).Message())
			}
		}()
		return next(ctx, req)
	}
}

// rootOnly lets only root's processes connect, as the kernel says who they are;
// the socket's mode says the same, but a mode can be changed.
type rootOnly struct{}

type rootAuth struct{ credentials.CommonAuthInfo }

func (rootAuth) AuthType() string { return "peer" }

func (rootOnly) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, nil, fmt.Errorf("connection over %s", c.LocalAddr().Network())
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, nil, err
	}
	switch {
	case credErr != nil:
		return nil, nil, fmt.Errorf("peer credentials: %w", credErr)
	case cred.Uid != 0:
		return nil, nil, fmt.Errorf("process %d of user %d: %w", cred.Pid, cred.Uid, os.ErrPermission)
	}
	return c, rootAuth{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

func (rootOnly) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}
func (rootOnly) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peer"}
}
func (rootOnly) Clone() credentials.TransportCredentials { return rootOnly{} }
func (rootOnly) OverrideServerName(string) error         { return nil }

// stopLimit bounds how long the end of the server waits for calls.
const stopLimit = 10 * time.Second

// serve answers calls until ctx is done.
func (s *Server) serve(ctx context.Context) error {
	l, err := listen(s.options.Socket)
	if err != nil {
		return err
	}
	frozen, err := listen(serverv1.FrozenSocket(s.options.Socket))
	if err != nil {
		l.Close()
		return err
	}
	g := newGRPC(s.log, s)
	failed := make(chan error, 3)
	var serving sync.WaitGroup
	serving.Go(func() { failed <- g.Serve(l) })
	serving.Go(func() { failed <- s.serveFrozen(frozen) })
	h := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	if s.options.HTTPAddress != "" {
		hl, err := net.Listen("tcp", s.options.HTTPAddress)
		if err != nil {
			g.Stop()
			frozen.Close()
			serving.Wait()
			return fmt.Errorf("listen: %w", err)
		}
		serving.Go(func() { failed <- h.Serve(hl) })
	}
	s.log.Info("serving", "socket", s.options.Socket, "http", s.options.HTTPAddress, "owner", s.owner.id)
	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	}
	abrupt := time.AfterFunc(stopLimit, g.Stop)
	g.GracefulStop()
	abrupt.Stop()
	h.Close()
	frozen.Close()
	serving.Wait()
	return err
}
