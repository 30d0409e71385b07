// Package client talks to the device server of the same node.
package client

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

// A Client calls a device server. Errors keep their gRPC code (status.Code);
// what each means is said at the methods of the API, in server.proto. It may be
// used from many goroutines at once.
type Client struct {
	socket  string
	conn    *grpc.ClientConn
	devices serverv1.DevicesClient
	kind    atomic.Pointer[string]
}

// Dial makes a client of the server at a unix socket. It does not wait for the
// server: calls fail with UNAVAILABLE as long as there is none, and connect
// again by themselves.
func Dial(socket string) (*Client, error) {
	// The socket's mode and the peer's credentials, which the server checks, are
	// the protection; nothing on the wire adds to that.
	retry := backoff.DefaultConfig
	// A server that is restarted is back in a second; gRPC would wait up to two
	// minutes before it looks again.
	retry.BaseDelay, retry.MaxDelay = 50*time.Millisecond, time.Second
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, fmt.Errorf("dial device server: %w", err)
	}
	return &Client{socket: socket, conn: conn, devices: serverv1.NewDevicesClient(conn)}, nil
}

// Close ends the connection; calls under way fail.
func (c *Client) Close() error { return c.conn.Close() }

// AttachOptions say how to serve a volume.
type AttachOptions struct {
	// Path of the backing file, inside the server's pools directory.
	Path string
	// Queues is the number of hardware queues; 0 means 1.
	Queues uint32
	// QueueDepth is the number of requests in flight a queue; 0 means 64.
	QueueDepth uint32
	ReadOnly   bool
	// Limits also replace those of a volume that is attached already.
	Limits Limits
}

// State is where a device is in its life.
type State string

// The states of a device, as server.proto explains them.
const (
	Attaching  State = "ATTACHING"
	Live       State = "LIVE"
	Recovering State = "RECOVERING"
	Detaching  State = "DETACHING"
	Failed     State = "FAILED"
)

// A Device is an attached volume's.
type Device struct {
	VolumeID     string
	DeviceID     uint32
	Path         string // /dev/ublkbN
	Major, Minor uint32
	SizeBytes    uint64
	State        State
	BackingPath  string
	Message      string
	// IOErrors counts the requests that failed.
	IOErrors uint64
	// DataLost is set when a flush has failed.
	DataLost  bool
	Limits    Limits
	Throttled time.Duration // for how long requests have waited because of limits, in sum
}

// Info is what a server says of its kernel and itself.
type Info struct {
	KernelRelease, BootID string
	Features              []string
	DeleteKind            string
	DevicesMax            uint32
	DevicesUsed           uint32
	Wedged                bool
	WedgedMessage         string
	Version               string
	// Attached are the server's volumes with a device, Releasing its devices
	// that no volume has and that the kernel has not let go of.
	Attached, Releasing uint32
}

// Attach serves a volume and returns its device; repeated, it returns the same.
func (c *Client) Attach(ctx context.Context, volumeID string, o AttachOptions) (Device, error) {
	r, err := c.devices.Attach(ctx, &serverv1.AttachRequest{
		VolumeId: volumeID, Path: o.Path, Queues: o.Queues, QueueDepth: o.QueueDepth, ReadOnly: o.ReadOnly,
		Limits: o.Limits.message(),
	})
	if err != nil {
		return Device{}, err
	}
	return device(r.Device), nil
}

// Detach stops serving a volume; its disk is gone when it returns nil.
func (c *Client) Detach(ctx context.Context, volumeID string) error {
	_, err := c.devices.Detach(ctx, &serverv1.DetachRequest{VolumeId: volumeID})
	return err
}

// Get returns a volume's device.
func (c *Client) Get(ctx context.Context, volumeID string) (Device, error) {
	r, err := c.devices.Get(ctx, &serverv1.GetRequest{VolumeId: volumeID})
	if err != nil {
		return Device{}, err
	}
	return device(r.Device), nil
}

// List returns the devices of all attached volumes, sorted by volume id.
func (c *Client) List(ctx context.Context) ([]Device, error) {
	r, err := c.devices.List(ctx, &serverv1.ListRequest{})
	if err != nil {
		return nil, err
	}
	list := make([]Device, len(r.Devices))
	for i, d := range r.Devices {
		list[i] = device(d)
	}
	return list, nil
}

// Info asks what the kernel can do and how many devices there are.
func (c *Client) Info(ctx context.Context) (Info, error) {
	r, err := c.devices.Info(ctx, &serverv1.InfoRequest{})
	if err != nil {
		return Info{}, err
	}
	c.kind.Store(&r.DeleteKind)
	return Info{
		KernelRelease: r.KernelRelease, BootID: r.BootId, Features: r.Features, DeleteKind: r.DeleteKind,
		DevicesMax: r.DevicesMax, DevicesUsed: r.DevicesUsed,
		Wedged: r.Wedged, WedgedMessage: r.WedgedMessage, Version: r.Version,
		Attached: r.Attached, Releasing: r.Releasing,
	}, nil
}

// DeleteKind is what the last Info said of it, "" before the first. It does not
// block.
func (c *Client) DeleteKind() string {
	if k := c.kind.Load(); k != nil {
		return *k
	}
	return ""
}

func device(d *serverv1.Device) Device {
	return Device{
		VolumeID: d.GetVolumeId(), DeviceID: d.GetDeviceId(), Path: d.GetPath(), Major: d.GetMajor(), Minor: d.GetMinor(),
		SizeBytes: d.GetSizeBytes(), State: State(d.GetState().String()), BackingPath: d.GetBackingPath(), Message: d.GetMessage(),
		IOErrors: d.GetIoErrors(), DataLost: d.GetDataLost(),
		Limits: limits(d.GetLimits()), Throttled: time.Duration(d.GetThrottledNs()),
	}
}
