package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
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

func (a *api) Cut(ctx context.Context, r *serverv1.CutRequest) (*serverv1.CutResponse, error) {
	copies, err := newCopies(r)
	if err != nil {
		return nil, withCode(err)
	}
	held, err := a.server.cut(ctx, copies)
	if err != nil {
		return nil, withCode(err)
	}
	return &serverv1.CutResponse{HeldNs: uint64(held)}, nil
}

func (a *api) Resize(ctx context.Context, r *serverv1.ResizeRequest) (*serverv1.ResizeResponse, error) {
	size, err := a.server.resize(ctx, r.VolumeId)
	if err != nil {
		return nil, withCode(err)
	}
	return &serverv1.ResizeResponse{SizeBytes: size}, nil
}

func (a *api) SetLimits(ctx context.Context, r *serverv1.SetLimitsRequest) (*serverv1.SetLimitsResponse, error) {
	if err := a.server.setLimits(ctx, r.VolumeId, limitsOf(r.Limits)); err != nil {
		return nil, withCode(err)
	}
	return &serverv1.SetLimitsResponse{}, nil
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
		{worker.ErrLost, codes.Unavailable}, // in the middle of it; another one takes over
		{errNoSharing, codes.FailedPrecondition},
		{errShrunk, codes.FailedPrecondition},
		{errNoResize, codes.Unimplemented},
		{syscall.ENOSPC, codes.ResourceExhausted},
		{syscall.EDQUOT, codes.ResourceExhausted},
		{syscall.ETIMEDOUT, codes.DeadlineExceeded},
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
func detached[T any](ctx context.Context, s *Server, limit time.Duration, f func(context.Context) (T, error)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	done := make(chan answer, 1)
	s.background.Add(1)
	go func() {
		defer s.background.Done()
		opCtx, cancel := context.WithTimeout(s.stopping, limit)
		defer cancel()
		r, err := f(opCtx)
		done <- answer{r, err}
	}()
	select {
	case a := <-done:
		return a.result, a.err
	case <-ctx.Done():
		return result, fmt.Errorf("the operation goes on: %w", context.Cause(ctx))
	}
}
