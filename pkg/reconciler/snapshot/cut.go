package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/cut"
)

// cut copies the volume, under its lock: neither is it staged or unstaged meanwhile,
// nor removed.
func (r *Reconciler) cut(ctx context.Context, s *v1alpha1.UblkSnapshot) (again bool, result reconcile.Result, err error) {
	release, _, ok := r.o.Locks.TryAcquire(s.Spec.Volume, "snapshot")
	if !ok {
		return false, reconcile.Result{RequeueAfter: busyAgain}, nil
	}
	defer release()
	p, err := r.o.Pools.Pool(s.Spec.Pool)
	if err != nil {
		return true, result, nil // gone since it was looked at
	}
	var at pool.Cut
	c, err := p.CopyToSnapshot(s.Name, s.Spec.Volume, func() pool.Cut { return at })
	if err == nil {
		defer c.Drop()
		at, err = r.o.Cutter.Volumes(ctx, cut.Copy{Volume: s.Spec.Volume, To: c})
	}
	if err == nil {
		err = checkSize(c, s)
	}
	if err == nil {
		err = c.Finish()
	}
	if err == nil {
		return true, result, nil
	}
	next, soon := problem(err)
	result.RequeueAfter = notReadyIn
	if soon {
		result.RequeueAfter = serverAgain
	}
	return false, result, r.report(ctx, s, next)
}

// grewError says that a volume was made larger between the request for the snapshot
// and its cut.
type grewError struct{ hasBytes, wantBytes int64 }

func (e *grewError) Error() string {
	return fmt.Sprintf("the volume has grown to %d bytes since the snapshot was asked for, and had %d then", e.hasBytes, e.wantBytes)
}

func checkSize(c *pool.Copy, s *v1alpha1.UblkSnapshot) error {
	size, err := c.SizeBytes()
	if err == nil && size > s.Spec.SizeBytes {
		err = &grewError{size, s.Spec.SizeBytes}
	}
	return err
}

// problem is what to report of a cut that failed, and whether to try again soon.
func problem(err error) (next step, soon bool) {
	next = step{notReady, reasonPoolFailed, err.Error()}
	var grew *grewError
	switch code := driver.Code(err); {
	case errors.As(err, &grew):
		next.reason = v1alpha1.ReasonVolumeGrew
	case errors.Is(err, fs.ErrNotExist):
		next.reason = v1alpha1.ReasonVolumeMissing
		next.message = "there is no such volume to cut: " + next.message
	case code == codes.FailedPrecondition:
		next.reason = v1alpha1.ReasonNoReflink
	case code == codes.ResourceExhausted:
		next.reason = v1alpha1.ReasonPoolFull
	case code == codes.Unavailable, code == codes.Aborted, code == codes.NotFound, code == codes.DeadlineExceeded:
		// The device server is being restarted, or the device recovered.
		next.reason = "ServerUnavailable"
		return next, true
	}
	return next, false
}
