package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/cut"
)

// cut copies the volumes of a snapshot and of those that are cut with it, under the
// locks of the volumes: none is staged, unstaged or removed meanwhile.
func (r *Reconciler) cut(ctx context.Context, s *v1alpha1.UblkSnapshot) (again bool, result reconcile.Result, err error) {
	members, err := r.members(ctx, s)
	if err != nil {
		return false, result, err
	}
	if members == nil {
		return false, reconcile.Result{RequeueAfter: busyAgain}, nil // not all are seen yet
	}
	for _, m := range members {
		if m.Status.CreatedAt != nil {
			return false, reconcile.Result{RequeueAfter: notReadyIn}, r.report(ctx, s, step{notReady, reasonFileMissing,
				"the rest of its group was cut, " + m.Name + " for one. It is not cut alone; delete the group"})
		}
	}
	for _, m := range members {
		release, _, ok := r.o.Locks.TryAcquire(m.Spec.Volume, "snapshot")
		if !ok {
			return false, reconcile.Result{RequeueAfter: busyAgain}, nil
		}
		defer release()
		if m.Name == s.Name {
			continue // whoever looks at it is here
		}
		release, ok = r.hold(m.Name)
		if !ok {
			return false, reconcile.Result{RequeueAfter: busyAgain}, nil
		}
		defer release()
	}
	// Only what is seen under the locks stays true: a member whose object goes now would
	// get a file that nobody removes.
	if members, err = r.members(ctx, s); err != nil || members == nil {
		return false, reconcile.Result{RequeueAfter: busyAgain}, err
	}
	for _, m := range members {
		if !m.DeletionTimestamp.IsZero() {
			return false, reconcile.Result{RequeueAfter: notReadyIn}, r.report(ctx, s, step{notReady, reasonFileMissing,
				"its group is not whole: " + m.Name + " is being deleted. Delete the group"})
		}
	}
	if err := r.cutAll(ctx, members); err != nil {
		next, soon := problem(err)
		result.RequeueAfter = notReadyIn
		if soon {
			result.RequeueAfter = serverAgain
		}
		return false, result, r.report(ctx, s, next)
	}
	return true, result, nil
}

// cutAll makes the files of all members, that of the first one last: where it is, all
// are.
func (r *Reconciler) cutAll(ctx context.Context, members []*v1alpha1.UblkSnapshot) error {
	var at pool.Cut
	var copies []cut.Copy
	for _, m := range members {
		p, err := r.o.Pools.Pool(m.Spec.Pool)
		if err != nil {
			return err
		}
		if len(members) > 1 {
			// What a cut that died has left of the group is of another moment, and was
			// reported to nobody.
			if err := p.DeleteSnapshot(m.Name); err != nil {
				return err
			}
		}
		c, err := p.CopyToSnapshot(m.Name, m.Spec.Volume, func() pool.Cut { return at })
		if err != nil {
			return err
		}
		defer c.Drop()
		copies = append(copies, cut.Copy{Volume: m.Spec.Volume, To: c})
	}
	at, err := r.o.Cutter.Volumes(ctx, copies...)
	if err != nil {
		return err
	}
	for i, c := range copies {
		if err := checkSize(c.To, members[i]); err != nil {
			return err
		}
	}
	for _, c := range slices.Backward(copies) {
		if err := c.To.Finish(); err != nil {
			return err
		}
	}
	return nil
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
	case code == codes.DeadlineExceeded:
		// Not soon: each try holds up who writes to the volume.
		next.reason = reasonTooLong
		next.message = "it took too long, as when a volume has more to write than its disk or its limits take: " + next.message
	case code == codes.Unavailable, code == codes.Aborted, code == codes.NotFound:
		// The device server is being restarted, or the device recovered.
		next.reason = "ServerUnavailable"
		return next, true
	}
	return next, false
}
