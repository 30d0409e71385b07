package metadata

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
)

// Audience is whom the forwarder's token is for. A token for the API server does not
// open a node's port, nor this token the API server.
const Audience = "csi-ublk.io/node"

// tokenFile is the forwarder's token as gRPC credentials. The kubelet replaces the file,
// so it is read for every call.
type tokenFile string

func (f tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := os.ReadFile(string(f))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "read the token for nodes: %v", err)
	}
	return map[string]string{"authorization": "Bearer " + strings.TrimSpace(string(token))}, nil
}

func (tokenFile) RequireTransportSecurity() bool { return true }

// reviewer asks the API server whose a token is.
type reviewer struct {
	reviews authenticationclient.TokenReviewInterface
	// user is the only one that may call.
	user string
}

// check returns a gRPC status if the call of ctx may not be answered.
func (r *reviewer) check(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	token := ""
	if values := md.Get("authorization"); len(values) == 1 {
		token, _ = strings.CutPrefix(values[0], "Bearer ")
	}
	if token == "" {
		return status.Error(codes.Unauthenticated, "the call has no token")
	}
	review, err := r.reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return status.Error(codes.Unavailable, fmt.Sprintf("ask the API server whose token this is: %v", err))
	}
	// An API server that knows no audiences names none, and then checked none.
	if !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, Audience) {
		return status.Errorf(codes.Unauthenticated, "the call has no valid token for %s: %s", Audience, review.Status.Error)
	}
	if review.Status.User.Username != r.user {
		return status.Errorf(codes.PermissionDenied, "%s may not call, only %s", review.Status.User.Username, r.user)
	}
	return nil
}
