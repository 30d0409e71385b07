package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

// api is the gRPC face of a Server. It holds no logic: errors get their code
// here and nowhere else.
type api struct {
	serverv1.UnimplementedDevicesServer
	server *Server
}

func (a *api) Attach(ctx context.Context, r *serverv1.AttachRequest) (*serverv1.AttachResponse, error) {
	spec, err := newAttachSpec(r)
	if err != nil {
		return nil, withCode(err)
	}
	d, err := a.server.attach(ctx, spec)
	if err != nil {
		return nil, withCode(err)
	}
	return &serverv1.AttachResponse{Device: d}, nil
}

func (a *api) Detach(ctx context.Context, r *serverv1.DetachRequest) (*serverv1.DetachResponse, error) {
	if err := a.server.detach(ctx, r.VolumeId); err != nil {
		return nil, withCode(err)
	}
	return &serverv1.DetachResponse{}, nil
}

func (a *api) Get(_ context.Context, r *serverv1.GetRequest) (*serverv1.GetResponse, error) {
	d, ok := a.server.table.get(r.VolumeId)
	if !ok {
		return nil, status.Errorf(codes.NotFound, "volume %q is not attached", r.VolumeId)
	}
	return &serverv1.GetResponse{Device: d}, nil
}

func (a *api) List(context.Context, *serverv1.ListRequest) (*serverv1.ListResponse, error) {
	return &serverv1.ListResponse{Devices: a.server.table.list()}, nil
}

func (a *api) Info(context.Context, *serverv1.InfoRequest) (*serverv1.InfoResponse, error) {
	r, err := a.server.info()
	if err != nil {
		return nil, withCode(err)
	}
	return r, nil
}

// withCode maps an error to what the API promises for it. The order counts: an
// operation that ran out of time while it waited for something is unavailable.
func withCode(err error) error {
	for _, m := range []struct {
		is   error
		code codes.Code
	}{
		{errInvalid, codes.InvalidArgument},
		{errBusy, codes.Aborted},
		{errFull, codes.ResourceExhausted},
		{errInUse, codes.FailedPrecondition},
		{errUnavailable, codes.Unavailable},
		{fs.ErrNotExist, codes.NotFound},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
	} {
		if errors.Is(err, m.is) {
			return status.Error(m.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}

// detached runs an operation to its end, whatever becomes of the call that
// wanted it; the operation's own limit holds. A call that ends early gets its
// context's error, and finds out by trying again.
func (s *Server) detached(ctx context.Context, limit time.Duration, f func(context.Context) (*serverv1.Device, error)) (*serverv1.Device, error) {
	type answer struct {
		device *serverv1.Device
		err    error
	}
	done := make(chan answer, 1)
	s.background.Add(1)
	go func() {
		defer s.background.Done()
		opCtx, cancel := context.WithTimeout(s.stopping, limit)
		defer cancel()
		d, err := f(opCtx)
		done <- answer{d, err}
	}()
	select {
	case a := <-done:
		return a.device, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the operation goes on: %w", context.Cause(ctx))
	}
}
