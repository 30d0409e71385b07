//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// slots is how many volumes the scheduler may place on a node; an error if nobody says,
// which it takes for any number.
func slots(ctx context.Context, node string) (int32, error) {
	o := &storagev1.CSINode{}
	if err := s.Get(ctx, client.ObjectKey{Name: node}, o); err != nil {
		return 0, err
	}
	for _, d := range o.Spec.Drivers {
		if d.Name == driverName && d.Allocatable != nil && d.Allocatable.Count != nil && *d.Allocatable.Count > 0 {
			return *d.Allocatable.Count, nil
		}
	}
	return 0, fmt.Errorf("CSINode %s has no limit of %s: %+v", node, driverName, o.Spec.Drivers)
}

// TestTheLimitOfVolumesComesBack: a node plugin that is replaced takes its entry in
// CSINode along, and the scheduler then knows no limit; the next one brings it again.
func TestTheLimitOfVolumesComesBack(t *testing.T) {
	var nodes v1alpha1.UblkNodeList
	if err := s.List(t.Context(), &nodes); err != nil || len(nodes.Items) == 0 {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	node := nodes.Items[0].Name
	most := nodes.Items[0].Status.Slots.Max
	// Not the same as before: on a shared kernel others' devices take from it, and come and go.
	there := func(ctx context.Context) error {
		n, err := slots(ctx, node)
		if err == nil && n > most {
			err = fmt.Errorf("it is %d, the server allows %d", n, most)
		}
		return err
	}
	if err := there(t.Context()); err != nil {
		t.Fatal(err)
	}
	replacePod(t, "node", node)
	eventually(t, 2*time.Minute, "the limit is there again", there)
}
