package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/driver/node"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// A plugin is the node service as the node role serves it, on a socket of its
// own, without a cluster. As a podWay it is called as kubelet does.
type plugin struct {
	s       *station
	way     string
	log     io.Closer
	pools   *pool.Set
	service *node.Service
	stop    context.CancelFunc
	served  chan error
	conn    *grpc.ClientConn
	calls   csi.NodeClient
}

// startPlugin starts one that keeps so many templates; way is its name as a podWay.
func startPlugin(ctx context.Context, s *station, way string, templates int) (*plugin, error) {
	p := &plugin{s: s, way: way, served: make(chan error, 1)}
	if err := p.start(ctx, templates); err != nil {
		return nil, errors.Join(fmt.Errorf("start node plugin: %w", err), p.close(ctx))
	}
	return p, nil
}

func (p *plugin) start(ctx context.Context, templates int) (err error) {
	var pools []pool.Options
	for _, name := range []string{poolName, inlinePool} {
		pools = append(pools, pool.Options{Name: name, Kind: pool.KindPath, StateDir: p.s.dir, Path: p.s.poolDir(name), MaxTemplates: templates})
	}
	if p.pools, err = pool.NewSet(pools); err != nil {
		return err
	}
	if _, err := p.pools.Open(ctx); err != nil {
		return err
	}
	formats, err := mount.NewFormatter(mount.Options{IntentDir: filepath.Join(p.s.dir, "formatting", p.way)})
	if err != nil {
		return err
	}
	p.service, err = node.New(node.Options{NodeName: "bench", Devices: p.s.client, Pools: p.pools, Locks: &driver.VolumeLocks{}, Formats: formats})
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(p.s.dir, p.way+" log"))
	if err != nil {
		return err
	}
	p.log = log
	endpoint := "unix:" + filepath.Join(p.s.dir, fmt.Sprintf("csi-%d", templates))
	server, err := driver.NewServer(driver.ServerOptions{
		Endpoint: endpoint, Identity: driver.NewIdentity(driver.IdentityOptions{}), Node: p.service,
		Logger: slog.New(slog.NewJSONHandler(log, nil)), // it writes its lines as ever, but not here
	})
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	go func() { p.served <- server.Start(serving) }()
	if p.conn, err = grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return err
	}
	p.calls = csi.NewNodeClient(p.conn)
	_, err = csi.NewIdentityClient(p.conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
	return err
}

// close ends calls that a cancelled run has left, then unmounts what is left.
func (p *plugin) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	var errs []error
	if p.conn != nil {
		errs = append(errs, p.conn.Close())
	}
	if p.stop != nil {
		p.stop()
		errs = append(errs, <-p.served)
	}
	if p.service != nil {
		errs = append(errs, p.service.Close(ctx))
	}
	errs = append(errs, unmountBelow(p.s.dir))
	if p.pools != nil {
		for _, state := range p.pools.States() {
			if state.Pool != nil {
				errs = append(errs, state.Pool.Close())
			}
		}
	}
	if p.log != nil {
		errs = append(errs, p.log.Close())
	}
	return errors.Join(errs...)
}

func (p *plugin) name() string { return p.way }

func (p *plugin) prepare(n int) error { return p.s.blanks(n, podVolumeBytes) }

func (p *plugin) up(ctx context.Context, i int, fsType string) error {
	staging, target, err := podPaths(p.s.dir, i)
	if err != nil {
		return err
	}
	access := podAccess(fsType)
	id := volumeID("v", i)
	if _, err := p.calls.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, VolumeCapability: access, VolumeContext: map[string]string{"pool": poolName},
	}); err != nil {
		return err
	}
	_, err = p.calls.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: access,
	})
	return err
}

func podAccess(fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

func (p *plugin) down(ctx context.Context, i int) error {
	staging, target, err := podPaths(p.s.dir, i)
	if err != nil {
		return err
	}
	id := volumeID("v", i)
	if _, err := p.calls.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}); err != nil {
		return err
	}
	_, err = p.calls.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
	return err
}

func (p *plugin) settled(ctx context.Context) error { return p.s.settled(ctx, 0) }
