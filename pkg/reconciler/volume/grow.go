package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// grow makes the file larger. A pool without room for that is answered once a
// generation, like the question whether a volume is in use: who asked may have taken
// it back because of the answer, and the volume must not grow behind its back.
func (r *Reconciler) grow(ctx context.Context, v *v1alpha1.UblkVolume, o observation) (again bool, result reconcile.Result, err error) {
	p, err := r.o.Pools.Pool(v.Spec.Pool)
	if err != nil {
		return true, result, nil // gone since it was looked at
	}
	err = p.Grow(v.Name, v.Spec.CapacityBytes)
	var full *pool.FullError
	if errors.As(err, &full) {
		return r.ready(ctx, v, o, step{ready, reasonPoolFull, fmt.Sprintf("the volume stays as it is, with %d bytes: %v", o.fileBytes, full)})
	}
	return err == nil, result, err
}

// growthRefused is the answer that grow gave for v as it is; "" if it gave none.
func growthRefused(v *v1alpha1.UblkVolume) string {
	c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.VolumeReady)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != reasonPoolFull || c.ObservedGeneration != v.Generation {
		return ""
	}
	return c.Message
}

// resize makes the device of a volume in use as large as its file. Where the kernel
// can't, the next stage does, and the volume is as it should be until then.
func (r *Reconciler) resize(ctx context.Context, v *v1alpha1.UblkVolume, o observation) (again bool, result reconcile.Result, err error) {
	size, err := r.o.Devices.Resize(ctx, v.Name)
	switch driver.Code(err) {
	case codes.OK:
	case codes.Unimplemented:
		return r.ready(ctx, v, o, step{ready, "Created", fmt.Sprintf("the file exists with its full size; the device has %d bytes, which this kernel can't change while it is there, and grows when the volume is next staged", o.deviceBytes)})
	default:
		return false, result, fmt.Errorf("resize device: %w", err)
	}
	if size != 0 && int64(size) < o.fileBytes {
		return false, result, fmt.Errorf("resize device: it has %d bytes, the file %d", size, o.fileBytes)
	}
	return true, result, nil
}

// report writes what was seen into the status.
func (o *observation) report(v *v1alpha1.UblkVolume) {
	v.Status.CapacityBytes = o.fileBytes
	if o.use != unknown {
		v.Status.DeviceBytes = o.deviceBytes
		v.Status.ThrottledMillis = o.throttled.Milliseconds()
		v.Status.Limits = v.Spec.Limits.DeepCopy() // whoever does not have them gets them first
	}
}
