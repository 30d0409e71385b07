package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// noiseBytes is what sizes are rounded to, so that a running node does not write
// its status for every file that anybody touches.
const noiseBytes = 1 << 20

// observed is all that the status is made of.
type observed struct {
	info     serverclient.Info
	infoErr  error
	pools    []v1alpha1.PoolStatus
	version  string
	metadata *v1alpha1.SnapshotMetadataEndpoint
}

func poolStatus(s pool.State) v1alpha1.PoolStatus {
	p := v1alpha1.PoolStatus{Name: s.Options.Name, Kind: string(s.Options.Kind), FSType: s.Options.FSType}
	if s.Err != nil {
		p.Message = s.Err.Error()
		return p
	}
	p.FSType, p.Reflink = s.Pool.FSType(), s.Pool.Reflink()
	u, err := s.Pool.Usage()
	if err != nil {
		p.Message = err.Error()
		return p
	}
	p.Ready = true
	// Down what may be used, up what is taken: rounding promises nothing.
	p.CapacityBytes = u.CapacityBytes / noiseBytes * noiseBytes
	p.FreeBytes = u.FreeBytes / noiseBytes * noiseBytes
	p.EphemeralBytes = u.EphemeralBytes
	p.ReclaimingBytes = (u.ReclaimingBytes + noiseBytes - 1) / noiseBytes * noiseBytes
	return p
}

// kindUnknown is what the server says before it has probed the kernel.
const kindUnknown = "UNKNOWN"

// status is pure. What the server was not there to say stays as it was.
func (o observed) status(old v1alpha1.UblkNodeStatus, generation int64) v1alpha1.UblkNodeStatus {
	s := *old.DeepCopy()
	s.ObservedGeneration = generation
	s.DriverVersion = o.version
	s.SnapshotMetadata = o.metadata
	s.Pools = o.pools
	set := func(kind string, ok bool, reason, message string) {
		status := metav1.ConditionFalse
		if ok {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, ObservedGeneration: generation, Reason: reason, Message: message})
	}
	if o.infoErr == nil {
		s.Kernel = v1alpha1.KernelStatus{
			Release: o.info.KernelRelease, BootID: o.info.BootID,
			Features: o.info.Features, DeleteKind: o.info.DeleteKind,
		}
		if o.info.DeleteKind == kindUnknown && old.Kernel.BootID == o.info.BootID {
			// A server that has just begun has not probed it yet; it is the same kernel.
			s.Kernel.DeleteKind = old.Kernel.DeleteKind
		}
		s.Slots = v1alpha1.SlotStatus{Max: int32(o.info.DevicesMax), Used: int32(o.info.DevicesUsed)}
		if o.info.Wedged {
			set(v1alpha1.NodeKernelHealthy, false, "Wedged", o.info.WedgedMessage)
		} else {
			set(v1alpha1.NodeKernelHealthy, true, "Answers", "ublk control commands complete in time")
		}
	}
	reason, message := o.problem()
	set(v1alpha1.NodeReady, reason == "", orElse(reason, "Ready"), orElse(message, "the pools are open and the device server answers"))
	return s
}

// problem says what keeps the node from taking volumes. One pool of several that
// does not work is that pool's matter.
func (o observed) problem() (reason, message string) {
	if o.infoErr != nil {
		return "ServerUnavailable", fmt.Sprintf("the device server does not answer: %v", o.infoErr)
	}
	if slices.ContainsFunc(o.pools, func(p v1alpha1.PoolStatus) bool { return p.Ready }) {
		return "", ""
	}
	if len(o.pools) == 0 {
		return "NoPools", "no pool is configured"
	}
	var messages []string
	for _, p := range o.pools {
		messages = append(messages, p.Message)
	}
	return "NoPoolReady", strings.Join(messages, "; ")
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
