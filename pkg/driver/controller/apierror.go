package controller

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// apiError turns an error of the API server into a gRPC status. UNAVAILABLE is
// for all where the request may have been done or may pass the next time: the
// provisioner then keeps asking, and takes nothing for final. What the server
// refuses for good (validation, permissions) is INTERNAL: a bug or a broken
// installation, not the caller's fault.
func apiError(err error) error {
	switch {
	case driver.Code(err) != codes.Internal:
		return driver.ToStatus(err)
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err):
		return status.Error(codes.Internal, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}
