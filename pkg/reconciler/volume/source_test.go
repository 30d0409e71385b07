package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// What became of a volume that could not be made, and when it is tried again: a copy whose
// source is in use holds up who writes to that with every try.
func TestNotMade(t *testing.T) {
	copied := &v1alpha1.VolumeSource{Volume: "source"}
	for name, c := range map[string]struct {
		source *v1alpha1.VolumeSource
		err    error
		reason string
		again  time.Duration
	}{
		"an empty one, in a full pool":        {nil, &pool.FullError{}, v1alpha1.ReasonPoolFull, notReadyIn},
		"an empty one, on a disk that fails":  {nil, errors.New("i/o error"), v1alpha1.ReasonPoolFailed, notReadyIn},
		"an empty one knows of no source":     {nil, fs.ErrNotExist, v1alpha1.ReasonPoolFailed, notReadyIn},
		"a copy, in a full pool":              {copied, &pool.FullError{}, v1alpha1.ReasonPoolFull, notReadyIn},
		"of what there is not":                {copied, fmt.Errorf("open: %w", fs.ErrNotExist), v1alpha1.ReasonSourceMissing, notReadyIn},
		"of what is larger":                   {copied, &pool.SmallerError{}, v1alpha1.ReasonFileSize, notReadyIn},
		"where there is no reflink":           {copied, status.Error(codes.FailedPrecondition, "ext4"), v1alpha1.ReasonNoReflink, notReadyIn},
		"of what does not come to rest":       {copied, fmt.Errorf("freeze: %w", context.DeadlineExceeded), v1alpha1.ReasonCutTakesTooLong, notReadyIn},
		"while the device server is away":     {copied, status.Error(codes.Unavailable, "gone"), reasonServer, serverAgain},
		"while its device is being recovered": {copied, status.Error(codes.Aborted, "recovery"), reasonServer, serverAgain},
		"on a disk that fails":                {copied, errors.New("i/o error"), v1alpha1.ReasonPoolFailed, notReadyIn},
	} {
		t.Run(name, func(t *testing.T) {
			s, result := notMade(c.source, c.err)
			if s.verb != notReady || s.reason != c.reason || s.message == "" || result.RequeueAfter != c.again {
				t.Errorf("%+v, again in %v; want %s and %v", s, result.RequeueAfter, c.reason, c.again)
			}
		})
	}
}
