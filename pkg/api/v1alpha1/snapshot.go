package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// UblkSnapshotSpec names what was cut. Reserved: nothing acts on it yet.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable"
type UblkSnapshotSpec struct {
	// Volume is the name of the UblkVolume.
	Volume string `json:"volume"`
	Node   string `json:"node"`
	Pool   string `json:"pool"`
}

// UblkSnapshotStatus is written by the snapshot's node.
type UblkSnapshotStatus struct {
	Ready     bool         `json:"ready,omitempty"`
	SizeBytes int64        `json:"sizeBytes,omitempty"`
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`
}

// UblkSnapshot is a point-in-time copy of a volume in the same pool.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=us,categories=csi-ublk
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
type UblkSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   UblkSnapshotSpec   `json:"spec"`
	Status UblkSnapshotStatus `json:"status,omitempty"`
}

// UblkSnapshotList is a list of UblkSnapshot.
// +kubebuilder:object:root=true
type UblkSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []UblkSnapshot `json:"items"`
}
