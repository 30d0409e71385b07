package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestToStatus(t *testing.T) {
	_, notThere := os.Open("/nonexistent/file")
	cases := map[string]struct {
		err     error
		code    codes.Code
		message string
	}{
		"a missing file is NOT_FOUND with the path":       {notThere, codes.NotFound, "open /nonexistent/file: no such file or directory"},
		"a wrapped sentinel keeps the whole story":        {fmt.Errorf("open volume v1: %w", fs.ErrNotExist), codes.NotFound, "open volume v1: file does not exist"},
		"a full pool is RESOURCE_EXHAUSTED":               {&os.PathError{Op: "write", Path: "f", Err: syscall.ENOSPC}, codes.ResourceExhausted, "write f: no space left on device"},
		"a busy device is FAILED_PRECONDITION":            {syscall.EBUSY, codes.FailedPrecondition, "device or resource busy"},
		"what this node can't do is FAILED_PRECONDITION":  {fmt.Errorf("snapshot: %w", errors.ErrUnsupported), codes.FailedPrecondition, "snapshot: unsupported operation"},
		"a deadline beats the errno it came with":         {errors.Join(syscall.EBUSY, context.DeadlineExceeded), codes.DeadlineExceeded, "device or resource busy\ncontext deadline exceeded"},
		"a cancelled call is CANCELLED":                   {context.Canceled, codes.Canceled, "context canceled"},
		"a status passes through untouched":               {status.Error(codes.Unavailable, "no server"), codes.Unavailable, "no server"},
		"a wrapped status keeps its code":                 {fmt.Errorf("attach v1: %w", status.Error(codes.NotFound, "gone")), codes.NotFound, "attach v1: rpc error: code = NotFound desc = gone"},
		"a lock in use is ABORTED and names the holder":   {&BusyError{"v1", "DeleteVolume", "CreateVolume"}, codes.Aborted, `DeleteVolume of volume "v1": CreateVolume of the same volume is in flight; retry when it is done`},
		"a bad field is INVALID_ARGUMENT with the remedy": {&InvalidError{"volume_id", "is empty", "give one"}, codes.InvalidArgument, "volume_id is empty: give one"},
		"anything else is INTERNAL":                       {errors.New("boom"), codes.Internal, "boom"},
		"an error without a text gets one":                {errors.New(""), codes.Internal, "Internal"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := status.Convert(ToStatus(c.err))
			if got.Code() != c.code || got.Message() != c.message {
				t.Errorf("got %v %q, want %v %q", got.Code(), got.Message(), c.code, c.message)
			}
			if len(got.Details()) != 0 {
				t.Errorf("details %v: the CSI spec allows none", got.Details())
			}
		})
	}
	if ToStatus(nil) != nil {
		t.Error("nil became an error")
	}
}
