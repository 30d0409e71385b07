//go:build sanity

package sanity

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registerAsKubelet takes kubelet's part in the registration of the node role,
// which is not ready before.
func (d *deployment) registerAsKubelet() error {
	conn, err := grpc.NewClient("unix://"+d.path("kubelet/plugins_registry/csi-ublk.io-reg.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	kubelet := registration.NewRegistrationClient(conn)
	info, err := kubelet.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return fmt.Errorf("ask the plugin who it is: %w", err)
	}
	if "unix://"+info.Endpoint != d.nodeEndpoint() || info.Name != "csi-ublk.io" || info.Type != registration.CSIPlugin {
		return fmt.Errorf("the plugin calls itself %v, its socket should be %s", info, d.nodeEndpoint())
	}
	_, err = kubelet.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true})
	return err
}
