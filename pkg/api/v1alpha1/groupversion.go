// Package v1alpha1 holds the API objects of csi-ublk: UblkVolume, UblkNode and
// UblkSnapshot, all cluster-scoped, in the group csi-ublk.io.
//
// The controller writes specs; the node plugin of the node that a spec names
// writes status. Nothing here knows gRPC or CSI types.
//
// +kubebuilder:object:generate=true
// +groupName=csi-ublk.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "csi-ublk.io", Version: "v1alpha1"}

// AddToScheme registers the types of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&UblkVolume{}, &UblkVolumeList{},
		&UblkNode{}, &UblkNodeList{},
		&UblkSnapshot{}, &UblkSnapshotList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
