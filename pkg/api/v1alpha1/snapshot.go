package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SnapshotFinalizer is on every UblkSnapshot from its creation. The node plugin takes it
// off once the snapshot's file is in the pool's trash; the controller takes it off when
// the snapshot's node no longer exists.
const SnapshotFinalizer = "csi-ublk.io/snapshot"

// SnapshotReady is the condition type of a UblkSnapshot that is True when its file is
// there and durable, and False with the reason while it is not.
const SnapshotReady = "Ready"

// ReasonVolumeMissing is the reason of SnapshotReady being False when there is no volume
// to cut.
const ReasonVolumeMissing = "VolumeMissing"

// ReasonVolumeGrew is the reason of SnapshotReady being False when the volume was made
// larger between the request and the cut: the snapshot must be asked for anew, since
// spec.sizeBytes is what it may be restored to.
const ReasonVolumeGrew = "VolumeGrew"

// ReasonCutTakesTooLong is the reason of a snapshot, or of a volume with a source, not
// being ready when the volume to cut did not come to rest in time.
const ReasonCutTakesTooLong = "CutTakesTooLong"

// ReasonSourceMissing is the reason of a volume not being ready when there is no such
// snapshot or volume to copy.
const ReasonSourceMissing = "SourceMissing"

// ReasonNoReflink is the reason of a snapshot, or of a volume with a source, not being
// ready when the pool's file system can't share extents between files.
const ReasonNoReflink = "NoReflink"

// UblkSnapshotSpec names what is cut.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable"
type UblkSnapshotSpec struct {
	// Volume is the name of the UblkVolume.
	// +kubebuilder:validation:MinLength=1
	Volume string `json:"volume"`
	// Node and Pool are the volume's.
	// +kubebuilder:validation:MinLength=1
	Node string `json:"node"`
	// +kubebuilder:validation:MinLength=1
	Pool string `json:"pool"`
	// CSIName is the name given to CreateSnapshot, which makes it idempotent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	CSIName string `json:"csiName"`
	// SizeBytes is the volume's size when the snapshot was asked for, and the least size
	// of a volume made from it.
	// +kubebuilder:validation:Minimum=4096
	SizeBytes int64 `json:"sizeBytes"`
	// Group is the id of the group snapshot that it is a member of; members of one group
	// are cut at one moment. GroupMembers are the names of all its UblkSnapshots.
	// +optional
	Group string `json:"group,omitempty"`
	// +optional
	// +listType=set
	GroupMembers []string `json:"groupMembers,omitempty"`
}

// UblkSnapshotStatus is written by the snapshot's node.
type UblkSnapshotStatus struct {
	// AllocatedBytes is the space that the file took in its pool when it was cut, which
	// is what it counts with.
	AllocatedBytes int64 `json:"allocatedBytes,omitempty"`
	// CreatedAt is the moment of the cut.
	CreatedAt *metav1.MicroTime `json:"createdAt,omitempty"`
	// HeldMicros is for how many microseconds the volume's requests were held back.
	HeldMicros int64 `json:"heldMicros,omitempty"`
	// Conditions: Ready.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// UblkSnapshot is a point-in-time copy of a volume in the same pool. Its name is the CSI
// snapshot id.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=us,categories=csi-ublk
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.spec.sizeBytes`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocatedBytes`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
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
