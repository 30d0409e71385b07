package main

import (
	"fmt"
	"net"
	"os"

	"github.com/spf13/pflag"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver/metadata"
	"github.com/csi-ublk/csi-ublk/pkg/driver/node"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// metadataOptions are the flags for the node's end of the snapshot metadata service.
type metadataOptions struct {
	listen string
	host   string
	client string
}

func (o *metadataOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "snapshot-metadata-address", "", "address, as :9812, where csi-ublk metadata asks for the blocks of snapshots; empty for nowhere")
	f.StringVar(&o.host, "snapshot-metadata-host", os.Getenv("POD_IP"), "host that it connects to; POD_IP in the environment")
	f.StringVar(&o.client, "snapshot-metadata-client", "", "user that may ask, as system:serviceaccount:NAMESPACE:NAME")
}

func (o *metadataOptions) check() error {
	if o.listen == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(o.listen); err != nil {
		return usagef("--snapshot-metadata-address=%s: %v", o.listen, err)
	}
	if o.host == "" {
		return usagef("--snapshot-metadata-address needs --snapshot-metadata-host, or POD_IP in the environment")
	}
	if o.client == "" {
		return usagef("--snapshot-metadata-address needs --snapshot-metadata-client")
	}
	return nil
}

// reviewsPerSecond bounds what strangers can have the node ask the API server.
const reviewsPerSecond = 5

// server returns nil if none is wanted. What the UblkNode is to say of it comes along.
func (o *metadataOptions) server(kube *rest.Config, pools *pool.Set) (*metadata.NodeServer, *v1alpha1.SnapshotMetadataEndpoint, error) {
	if o.listen == "" {
		return nil, nil, nil
	}
	kube = rest.CopyConfig(kube)
	kube.QPS, kube.Burst = reviewsPerSecond, 2*reviewsPerSecond
	authentication, err := authenticationclient.NewForConfig(kube)
	if err != nil {
		return nil, nil, fmt.Errorf("make client for token reviews: %w", err)
	}
	s, err := metadata.NewNodeServer(metadata.NodeServerOptions{
		Listen: o.listen, Service: &node.SnapshotMetadata{Pools: pools}, Reviews: authentication.TokenReviews(), Client: o.client,
	})
	if err != nil {
		return nil, nil, err
	}
	_, port, err := net.SplitHostPort(o.listen)
	if err != nil {
		return nil, nil, err
	}
	return s, &v1alpha1.SnapshotMetadataEndpoint{Address: net.JoinHostPort(o.host, port), CertificateSHA256: s.CertificateSHA256}, nil
}
