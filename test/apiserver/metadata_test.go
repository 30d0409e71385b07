//go:build kube

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver/metadata"
)

// blocksOf answers for a node: one message a GiB of starting offset, and one more.
type blocksOf struct {
	csi.UnimplementedSnapshotMetadataServer
	name string
}

func (b blocksOf) GetMetadataAllocated(r *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	if r.StartingOffset > 10 {
		return status.Error(codes.OutOfRange, "too far")
	}
	for i := range int64(3) {
		err := s.Send(&csi.GetMetadataAllocatedResponse{BlockMetadata: []*csi.BlockMetadata{{ByteOffset: r.StartingOffset + i, SizeBytes: int64(r.MaxResults)}}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b blocksOf) GetMetadataDelta(r *csi.GetMetadataDeltaRequest, s csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	if len(r.Secrets) > 0 {
		return errors.New("the node was shown a secret")
	}
	return fmt.Errorf("%s of %s and %s: %w", b.name, r.BaseSnapshotId, r.TargetSnapshotId, errors.ErrUnsupported)
}

// tokenFor returns a token of a service account, which is made.
func tokenFor(t *testing.T, account, audience string) string {
	t.Helper()
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: account}}
	if err := api.Create(t.Context(), a); err != nil && !strings.Contains(err.Error(), "already exists") {
		t.Fatal(err)
	}
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	must(t, api.SubResource("token").Create(t.Context(), a, r))
	return r.Status.Token
}

// startMetadataNode serves for a node and writes where into its UblkNode.
func startMetadataNode(t *testing.T, name string) {
	t.Helper()
	kube, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(t, err)
	reviews, err := authenticationclient.NewForConfig(kube)
	must(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := free.Addr().String()
	must(t, free.Close())
	s, err := metadata.NewNodeServer(metadata.NodeServerOptions{
		Listen: address, Service: blocksOf{name: name}, Reviews: reviews.TokenReviews(), Client: "system:serviceaccount:default:asker",
	})
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Start(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	setEndpoint(t, name, &v1alpha1.SnapshotMetadataEndpoint{Address: address, CertificateSHA256: s.CertificateSHA256})
}

func setEndpoint(t *testing.T, name string, e *v1alpha1.SnapshotMetadataEndpoint) {
	t.Helper()
	n := &v1alpha1.UblkNode{}
	must(t, api.Get(t.Context(), client.ObjectKey{Name: name}, n))
	n.Status.SnapshotMetadata = e
	must(t, api.Status().Update(t.Context(), n))
}

// startMetadata runs the role metadata, which shows the token in a file.
func startMetadata(t *testing.T, tokenFile string) *grpc.ClientConn {
	t.Helper()
	endpoint := "unix://" + filepath.Join(t.TempDir(), "csi.sock")
	cmd := exec.Command(binary, "metadata", "--kubeconfig", kubeconfig, "--endpoint", endpoint, "--http-address", "0", "--token-file", tokenFile)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func allocated(t *testing.T, c csi.SnapshotMetadataClient, r *csi.GetMetadataAllocatedRequest) (list []*csi.BlockMetadata, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := c.GetMetadataAllocated(ctx, r)
	must(t, err)
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		list = append(list, m.BlockMetadata...)
	}
}

func delta(t *testing.T, c csi.SnapshotMetadataClient, base, target string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := c.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target, Secrets: map[string]string{"a": "b"}})
	must(t, err)
	_, err = s.Recv()
	return err
}

// The role metadata finds the node of a snapshot, which takes its token and no other,
// and passes on what the node says, errors too.
func TestSnapshotMetadataReachesTheNode(t *testing.T) {
	newNode(t, "meta-1", "meta", 100*mib)
	newNode(t, "meta-2", "meta2", 100*mib)
	seen(t, "meta-1", "meta", 100*mib)
	for _, name := range []string{"meta-v", "meta-w"} {
		_, err := create(t, request(name, "meta", 10*mib))
		must(t, err)
	}
	for name, volume := range map[string]string{"meta-a": "meta-v", "meta-other": "meta-w"} {
		_, err := snap(t, name, volume)
		must(t, err)
	}
	_, err := snap(t, "meta-b", "meta-v")
	must(t, err)
	tokenFile := filepath.Join(t.TempDir(), "token")
	write := func(token string) { must(t, os.WriteFile(tokenFile, []byte(token+"\n"), 0o600)) }
	write(tokenFor(t, "asker", metadata.Audience))
	conn := startMetadata(t, tokenFile)
	c := csi.NewSnapshotMetadataClient(conn)
	first := &csi.GetMetadataAllocatedRequest{SnapshotId: "meta-a", StartingOffset: 5, MaxResults: 7}

	capabilities, err := csi.NewIdentityClient(conn).GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	must(t, err)
	if !strings.Contains(capabilities.String(), "SNAPSHOT_METADATA_SERVICE") {
		t.Errorf("capabilities %v", capabilities)
	}
	if _, err := allocated(t, c, first); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "--snapshot-metadata-address") {
		t.Errorf("of a node that does not answer: %v", err)
	}
	startMetadataNode(t, "meta-1")
	list, err := allocated(t, c, first)
	if err != nil || len(list) != 3 || list[0].ByteOffset != 5 || list[2].ByteOffset != 7 || list[0].SizeBytes != 7 {
		t.Errorf("%v, %v", list, err)
	}
	wantCode := func(err error, want codes.Code, part string) {
		t.Helper()
		if status.Code(err) != want || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want %v with %q", err, want, part)
		}
	}
	_, err = allocated(t, c, &csi.GetMetadataAllocatedRequest{SnapshotId: "meta-a", StartingOffset: 11})
	wantCode(err, codes.OutOfRange, "node meta-1: too far")
	_, err = allocated(t, c, &csi.GetMetadataAllocatedRequest{SnapshotId: "meta-none"})
	wantCode(err, codes.NotFound, "meta-none")
	_, err = allocated(t, c, &csi.GetMetadataAllocatedRequest{})
	wantCode(err, codes.InvalidArgument, "snapshot_id")
	wantCode(delta(t, c, "meta-a", "meta-b"), codes.FailedPrecondition, "node meta-1: meta-1 of meta-a and meta-b")
	wantCode(delta(t, c, "meta-b", "meta-a"), codes.InvalidArgument, "cut after")
	wantCode(delta(t, c, "meta-other", "meta-b"), codes.InvalidArgument, "one volume")
	wantCode(delta(t, c, "meta-none", "meta-b"), codes.NotFound, "meta-none")

	// Whoever else calls is refused, and that is not the caller's fault.
	for _, token := range []string{"", "none", tokenFor(t, "asker", "https://kubernetes.default.svc"), tokenFor(t, "stranger", metadata.Audience)} {
		write(token)
		if _, err := allocated(t, c, first); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "node meta-1: ") {
			t.Errorf("token %.20q: %v", token, err)
		}
	}
	write(tokenFor(t, "asker", metadata.Audience))
	if list, err := allocated(t, c, first); err != nil || len(list) != 3 {
		t.Errorf("again: %v, %v", list, err)
	}
	// A node whose certificate is not the one that its object names gets no token.
	n := &v1alpha1.UblkNode{}
	must(t, api.Get(t.Context(), client.ObjectKey{Name: "meta-1"}, n))
	setEndpoint(t, "meta-1", &v1alpha1.SnapshotMetadataEndpoint{Address: n.Status.SnapshotMetadata.Address, CertificateSHA256: strings.Repeat("0", 64)})
	_, err = allocated(t, c, first)
	wantCode(err, codes.Unavailable, "not the one that its UblkNode names")
}
