package volume

import (
	"context"
	"fmt"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/limits"
	"github.com/csi-ublk/csi-ublk/pkg/driver/limits/onnode"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// limitsOf is what an object says, in the form that the node keeps.
func limitsOf(l *v1alpha1.VolumeLimits) pool.Limits {
	if l == nil {
		return pool.Limits{}
	}
	return onnode.Of(limits.Limits(*l))
}

// remember notes the limits beside the file, where the next stage finds them.
func (r *Reconciler) remember(v *v1alpha1.UblkVolume, o observation) (again bool, result reconcile.Result, err error) {
	p, err := r.o.Pools.Pool(v.Spec.Pool)
	if err != nil {
		return true, result, nil // gone since it was looked at
	}
	return true, result, p.SetLimits(v.Name, o.wantLimits)
}

// throttle puts the limits in force on the device, and goes on with what is to do then.
// It does not look again: what the server has accepted is in force.
func (r *Reconciler) throttle(ctx context.Context, v *v1alpha1.UblkVolume, o observation) (again bool, result reconcile.Result, err error) {
	err = r.o.Devices.SetLimits(ctx, v.Name, serverclient.Limits(o.wantLimits))
	switch driver.Code(err) {
	case codes.OK:
	case codes.NotFound:
		return true, result, nil // detached since it was looked at
	case codes.Unimplemented:
		return false, result, fmt.Errorf("set limits: the device server of this node is of a version that keeps none; delete its pod to replace it: %w", err)
	default:
		return false, result, fmt.Errorf("set limits: %w", err)
	}
	o.deviceLimits = o.wantLimits
	return r.take(ctx, v, o, plan(o))
}
