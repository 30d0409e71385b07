package controller

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// selectedNode is the annotation by which the scheduler says on which node a
	// claim that waits for its first pod is to be provisioned. One that is there
	// already binds the scheduler, too.
	selectedNode = "volume.kubernetes.io/selected-node"

	// What the provisioner tells of a claim with --extra-create-metadata.
	paramClaimName      = paramForeign + "pvc/name"
	paramClaimNamespace = paramForeign + "pvc/namespace"
)

// claimOf names the claim that a volume is for; the name is empty if it isn't known.
func claimOf(parameters map[string]string) types.NamespacedName {
	return types.NamespacedName{Namespace: parameters[paramClaimNamespace], Name: parameters[paramClaimName]}
}

// elsewhere is the answer if the copy of a source on node can't be there for the
// topology that is wanted. The scheduler knows nothing of sources: it would pick the
// node that it likes best again and again. So the claim is told the right one, where
// the caller says which claim it is. FAILED_PRECONDITION then has the provisioner read
// it again: after RESOURCE_EXHAUSTED it takes the annotation off, and after ABORTED it
// goes on with the claim as it was.
func (s *Service) elsewhere(ctx context.Context, w wanted, node string) error {
	problem := ""
	if len(w.nodes) == 1 && w.claim.Name != "" {
		moved, err := s.redirect(ctx, w.claim, w.nodes[0], node)
		if err != nil {
			problem = fmt.Sprintf("; claim %s could not be moved there: %v", w.claim, err)
		}
		if moved {
			return status.Errorf(codes.FailedPrecondition, "volume %q: its source is on node %s, and so must be the copy: claim %s, for which node %s was selected, is provisioned there", w.name, node, w.claim, w.nodes[0])
		}
	}
	return status.Errorf(codes.ResourceExhausted, "volume %q: its source is on node %s, and so must be the copy; the topology allows %v. Have the pod run there, or use a StorageClass that binds immediately%s", w.name, node, w.nodes, problem)
}

// redirect changes the node that is selected for a claim, and says whether it is the
// right one now. One that was not from is left alone: somebody else has decided.
func (s *Service) redirect(ctx context.Context, claim types.NamespacedName, from, to string) (bool, error) {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "PersistentVolumeClaim"})
	if err := s.o.Live.Get(ctx, claim, o); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if o.DeletionTimestamp != nil {
		return false, nil
	}
	switch o.Annotations[selectedNode] {
	case to:
		return true, nil
	case from:
	default:
		return false, nil
	}
	patch := client.MergeFromWithOptions(o.DeepCopy(), client.MergeFromWithOptimisticLock{})
	o.Annotations[selectedNode] = to
	if err := s.o.Client.Patch(ctx, o, patch); err != nil {
		return false, err
	}
	return true, nil
}
