package volume

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/cut"
)

// Cutter copies volumes at one moment; see cut.Cutter.
type Cutter interface {
	Volumes(ctx context.Context, copies ...cut.Copy) (pool.Cut, error)
}

// errBusy says that another operation has the source's lock.
var errBusy = errors.New("the source is busy")

// serverAgain is when a copy is tried again that the device server could not make.
const serverAgain = time.Second

// copySource makes the volume's file as a copy of its source. The volume's own lock
// is held.
func (r *Reconciler) copySource(ctx context.Context, p *pool.Pool, v *v1alpha1.UblkVolume) error {
	c, err := p.CopyToVolume(v.Name, v.Spec.CapacityBytes)
	if err != nil {
		return err
	}
	defer c.Drop()
	if v.Spec.Source.Snapshot != "" {
		err = c.FillFromSnapshot(v.Spec.Source.Snapshot)
	} else {
		err = r.copyVolume(ctx, c, v.Spec.Source.Volume)
	}
	if err != nil {
		return err
	}
	return c.Finish()
}

// copyVolume cuts a volume that may be in use, under its lock. Locks are only tried,
// so that two volumes that are made of each other's kin wait for nobody.
func (r *Reconciler) copyVolume(ctx context.Context, c *pool.Copy, source string) error {
	release, _, ok := r.o.Locks.TryAcquire(source, "clone")
	if !ok {
		return errBusy
	}
	defer release()
	_, err := r.o.Cutter.Volumes(ctx, cut.Copy{Volume: source, To: c})
	return err
}

// notMade is what to report of a file that could not be made, and when to try again.
func notMade(source *v1alpha1.VolumeSource, err error) (step, reconcile.Result) {
	s := step{notReady, reasonPoolFailed, err.Error()}
	var full *pool.FullError
	if errors.As(err, &full) {
		s.reason = reasonPoolFull
	}
	if source == nil {
		return s, reconcile.Result{RequeueAfter: notReadyIn}
	}
	var smaller *pool.SmallerError
	switch code := driver.Code(err); {
	case errors.As(err, &smaller):
		s.reason = reasonFileSize
	case errors.Is(err, fs.ErrNotExist):
		s.reason, s.message = v1alpha1.ReasonSourceMissing, "there is nothing to copy: "+s.message
	case code == codes.FailedPrecondition:
		s.reason = v1alpha1.ReasonNoReflink
	case code == codes.ResourceExhausted:
		s.reason = reasonPoolFull
	case code == codes.DeadlineExceeded:
		// Not soon: each try holds up who writes to the source.
		s.reason = v1alpha1.ReasonCutTakesTooLong
	case code == codes.Unavailable, code == codes.Aborted, code == codes.NotFound:
		// The device server is being restarted, or the device recovered.
		s.reason = reasonServer
		return s, reconcile.Result{RequeueAfter: serverAgain}
	}
	return s, reconcile.Result{RequeueAfter: notReadyIn}
}
