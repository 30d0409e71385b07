package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// RegistrationOptions configures a Registration.
type RegistrationOptions struct {
	// Socket is where kubelet looks for plugins:
	// <kubelet>/plugins_registry/csi-ublk.io-reg.sock.
	Socket string
	// CSISocket is the path of the CSI socket, as kubelet sees it.
	CSISocket string
	// OnRegistered, if not nil, is called every time kubelet says that the plugin
	// is registered. It must not block.
	OnRegistered func()
	// CheckEvery is how often the socket is looked at; 0 means 2 s.
	CheckEvery time.Duration
}

// Registration tells kubelet about the driver, without a sidecar: kubelet finds
// the socket, asks what is behind it, and says whether it took it.
type Registration struct {
	registration.UnimplementedRegistrationServer
	o       RegistrationOptions
	refused chan error
}

// NewRegistration returns a Registration.
func NewRegistration(o RegistrationOptions) *Registration {
	if o.CheckEvery == 0 {
		o.CheckEvery = 2 * time.Second
	}
	return &Registration{o: o, refused: make(chan error, 1)}
}

// Run offers the socket until ctx ends, and removes it then, so that kubelet knows
// the driver to be gone. A socket that disappears, as when the kubelet directory
// is made anew, is made again. It returns an error when kubelet refuses the driver.
func (r *Registration) Run(ctx context.Context) error {
	for {
		err := r.offer(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// offer serves the socket until it is no longer where kubelet looks.
func (r *Registration) offer(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(r.o.Socket), 0o750); err != nil {
		return fmt.Errorf("make directory of registration socket: %w", err)
	}
	if err := os.Remove(r.o.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old registration socket: %w", err)
	}
	l, err := net.Listen("unix", r.o.Socket)
	if err != nil {
		return fmt.Errorf("listen for kubelet: %w", err)
	}
	// Closing must not remove a successor's socket.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	made, err := os.Lstat(r.o.Socket)
	if err != nil {
		l.Close()
		return fmt.Errorf("look at registration socket: %w", err)
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, r)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		server.Stop()
		<-served
	}()
	tick := time.NewTicker(r.o.CheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if r.inPlace(made) {
				_ = os.Remove(r.o.Socket)
			}
			return nil
		case err := <-r.refused:
			return err
		case <-tick.C:
			if !r.inPlace(made) {
				return nil
			}
		}
	}
}

func (r *Registration) inPlace(made os.FileInfo) bool {
	now, err := os.Lstat(r.o.Socket)
	return err == nil && os.SameFile(made, now)
}

// GetInfo is kubelet's question what is behind the socket.
func (r *Registration) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:     registration.CSIPlugin,
		Name:     driver.Name,
		Endpoint: r.o.CSISocket,
		// Kubelet wants a version of CSI that it knows; all of CSI 1 is one to it.
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus is kubelet's verdict.
func (r *Registration) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		if r.o.OnRegistered != nil {
			r.o.OnRegistered()
		}
		return &registration.RegistrationStatusResponse{}, nil
	}
	select {
	case r.refused <- fmt.Errorf("kubelet refuses the driver: %s", s.GetError()):
	default:
	}
	return &registration.RegistrationStatusResponse{}, nil
}
