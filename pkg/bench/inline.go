package bench

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const wayInline = "csi-ublk, inline"

// inlinePool is a pool of their own, where no other volumes are promised anything.
const inlinePool = "inline"

// inlinePods are pods that bring their volume along: the file is made and removed
// in the call, too.
type inlinePods struct{ *plugin }

func (inlinePods) name() string { return wayInline }

func (inlinePods) prepare(int) error { return nil }

// inlineID is as long as kubelet's.
func inlineID(i int) string { return fmt.Sprintf("csi-%064d", i) }

func (p inlinePods) up(ctx context.Context, i int, fsType string) error {
	_, target, err := podPaths(p.s.dir, i)
	if err != nil {
		return err
	}
	_, err = p.calls.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: inlineID(i), TargetPath: target, VolumeCapability: podAccess(fsType),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "pool": inlinePool, "size": fmt.Sprint(podVolumeBytes)},
	})
	return err
}

func (p inlinePods) down(ctx context.Context, i int) error {
	_, target, err := podPaths(p.s.dir, i)
	if err != nil {
		return err
	}
	_, err = p.calls.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: inlineID(i), TargetPath: target})
	return err
}
