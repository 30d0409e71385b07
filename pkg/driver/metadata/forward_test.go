package metadata

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

func TestSnapshotsThatCanBeCompared(t *testing.T) {
	snapshot := func(volume, node string, at int64) *v1alpha1.UblkSnapshot {
		cut := metav1.NewMicroTime(time.UnixMicro(at))
		return &v1alpha1.UblkSnapshot{
			Spec:   v1alpha1.UblkSnapshotSpec{Volume: volume, Node: node, Pool: "default"},
			Status: v1alpha1.UblkSnapshotStatus{CreatedAt: &cut},
		}
	}
	for name, c := range map[string]struct {
		base, target *v1alpha1.UblkSnapshot
		refusal      string
	}{
		"two of one volume":                  {snapshot("v", "n", 1), snapshot("v", "n", 2), ""},
		"of one moment":                      {snapshot("v", "n", 1), snapshot("v", "n", 1), ""},
		"the later one first":                {snapshot("v", "n", 2), snapshot("v", "n", 1), "cut after"},
		"of two volumes":                     {snapshot("v", "n", 1), snapshot("w", "n", 2), "of volume w"},
		"of two volumes of one name in time": {snapshot("v", "n", 1), snapshot("v", "m", 2), "one volume"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkPair(c.base, c.target)
			if c.refusal == "" && err != nil || c.refusal != "" && (driver.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.refusal)) {
				t.Errorf("error %v, want %q", err, c.refusal)
			}
		})
	}
}

// A node's refusal of our own token is not the caller's to mend.
func TestErrorsOfANode(t *testing.T) {
	for _, c := range []struct{ of, want codes.Code }{
		{codes.OutOfRange, codes.OutOfRange}, {codes.FailedPrecondition, codes.FailedPrecondition}, {codes.Unavailable, codes.Unavailable},
		{codes.Unauthenticated, codes.Internal}, {codes.PermissionDenied, codes.Internal},
	} {
		err := ofNode("n1", status.Error(c.of, "why"))
		if status.Code(err) != c.want || status.Convert(err).Message() != "node n1: why" {
			t.Errorf("%v: %v", c.of, err)
		}
	}
	if err := ofNode("n1", nil); err != nil {
		t.Error(err)
	}
}
