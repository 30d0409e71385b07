package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VolumeFinalizer is on every UblkVolume from its creation. The node plugin
// takes it off once the volume's file is in the pool's trash; the controller
// takes it off when the volume's node no longer exists.
const VolumeFinalizer = "csi-ublk.io/volume"

// VolumeState is what should become of a volume's file.
// +kubebuilder:validation:Enum=Present;Absent
type VolumeState string

const (
	// VolumePresent: the file exists, and has spec.capacityBytes if the pool has room.
	VolumePresent VolumeState = "Present"
	// VolumeAbsent: the file is to go. The node refuses while the volume is in
	// use (condition InUse) and changes nothing then.
	VolumeAbsent VolumeState = "Absent"
)

// Condition types of a UblkVolume.
const (
	// VolumeReady is True when the file exists and is durable: the volume can be used.
	// It has its full size then, spec.capacityBytes, unless the reason is PoolFull: it
	// was to grow, the pool has no room, and it stays as large as status.capacityBytes
	// says. The node does not try again until spec changes.
	VolumeReady = "Ready"
	// VolumeCreated turns True when the file was made, and never back: a volume
	// that has it and no file has lost its data, and is not made anew.
	VolumeCreated = "Created"
	// VolumeInUse is the node's answer to spec.state Absent: True when the volume
	// is attached or staged, so that nothing was removed.
	VolumeInUse = "InUse"
	// VolumeHealthy is False while the volume's node sees something wrong with it in
	// use; the reason says what (pkg/driver/health).
	VolumeHealthy = "Healthy"
)

// Reasons of VolumeReady being False, but for PoolFull of a volume that exists.
const (
	ReasonPoolFull    = "PoolFull"    // the pool has no room for the volume's full size
	ReasonPoolMissing = "PoolMissing" // the node has no such pool
	ReasonPoolFailed  = "PoolFailed"  // the pool is there and does not work
	// ReasonNodeGone is written by the controller: the volume's node no longer
	// exists, and with it the volume's data.
	ReasonNodeGone    = "NodeGone"
	ReasonFileMissing = "FileMissing" // the file was there and is gone: the data is lost
	ReasonFileSize    = "FileSize"    // the file is larger than spec.capacityBytes
)

// VolumeSource is where a volume's first bytes come from: one of the two. It lies in
// the same pool of the same node.
// +kubebuilder:validation:XValidation:rule="has(self.snapshot) != has(self.volume)",message="give a snapshot or a volume"
type VolumeSource struct {
	// Snapshot is the name of a UblkSnapshot.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
	// Volume is the name of a UblkVolume.
	// +optional
	Volume string `json:"volume,omitempty"`
}

// VolumeLimits are the limits of a volume's rates; 0 means none. A request counts
// against every limit of its direction and against the total.
type VolumeLimits struct {
	// IOPS, ReadIOPS and WriteIOPS are requests a second.
	// +kubebuilder:validation:Minimum=0
	IOPS int64 `json:"iops,omitempty"`
	// +kubebuilder:validation:Minimum=0
	ReadIOPS int64 `json:"readIOPS,omitempty"`
	// +kubebuilder:validation:Minimum=0
	WriteIOPS int64 `json:"writeIOPS,omitempty"`
	// Bandwidth, ReadBandwidth and WriteBandwidth are bytes a second.
	// +kubebuilder:validation:Minimum=0
	Bandwidth int64 `json:"bandwidth,omitempty"`
	// +kubebuilder:validation:Minimum=0
	ReadBandwidth int64 `json:"readBandwidth,omitempty"`
	// +kubebuilder:validation:Minimum=0
	WriteBandwidth int64 `json:"writeBandwidth,omitempty"`
	// BurstMillis is for how many milliseconds an idle volume saves up its rates; 0
	// means 100.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=60000
	BurstMillis int32 `json:"burstMillis,omitempty"`
}

// UblkVolumeSpec says where a volume lives and how large it is.
// +kubebuilder:validation:XValidation:rule="self.node == oldSelf.node",message="spec.node is immutable"
// +kubebuilder:validation:XValidation:rule="self.pool == oldSelf.pool",message="spec.pool is immutable"
// +kubebuilder:validation:XValidation:rule="self.csiName == oldSelf.csiName",message="spec.csiName is immutable"
// +kubebuilder:validation:XValidation:rule="self.queues == oldSelf.queues && self.queueDepth == oldSelf.queueDepth",message="spec.queues and spec.queueDepth are immutable"
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source)",message="spec.source is immutable"
type UblkVolumeSpec struct {
	// Node is the name of the Kubernetes node that holds the volume.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Pool is the name of the node's pool that holds the volume's file.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`
	Pool string `json:"pool"`
	// CapacityBytes is the size of the block device, a multiple of 4096.
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:XValidation:rule="self % 4096 == 0",message="must be a multiple of 4096"
	CapacityBytes int64 `json:"capacityBytes"`
	// CSIName is the name given to CreateVolume, which makes it idempotent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	CSIName string `json:"csiName"`
	// Queues is the number of hardware queues of the device.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	Queues int32 `json:"queues,omitempty"`
	// QueueDepth is the number of requests in flight per queue.
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	QueueDepth int32 `json:"queueDepth,omitempty"`
	// Source is what the volume's first bytes are copied from; a volume without one
	// reads zeros.
	// +optional
	Source *VolumeSource `json:"source,omitempty"`
	// Limits of the volume's rates; they may be changed at any time.
	// +optional
	Limits *VolumeLimits `json:"limits,omitempty"`
	// State says whether the volume's file should exist.
	// +kubebuilder:default=Present
	State VolumeState `json:"state,omitempty"`
}

// UblkVolumeStatus is what the volume's node saw.
type UblkVolumeStatus struct {
	// ObservedGeneration is the metadata.generation that this status answers.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// CapacityBytes is the size of the volume's file.
	CapacityBytes int64 `json:"capacityBytes,omitempty"`
	// AllocatedBytes is the space that the file takes in its pool.
	AllocatedBytes int64 `json:"allocatedBytes,omitempty"`
	// DeviceBytes is the size of the volume's block device, while it has one. It stays
	// behind spec.capacityBytes where the kernel can't resize a device in use; the next
	// stage makes up for it.
	DeviceBytes int64 `json:"deviceBytes,omitempty"`
	// Limits that are in force on the node.
	// +optional
	Limits *VolumeLimits `json:"limits,omitempty"`
	// ThrottledMillis is for how long requests have waited because of the limits, in
	// sum, since the volume was attached.
	ThrottledMillis int64 `json:"throttledMillis,omitempty"`
	// Conditions: Ready, Created, InUse, Healthy.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// UblkVolume is one node-local volume: a file in a pool of a node, served to
// pods as a ublk block device. Its name is the CSI volume id.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=uv,categories=csi-ublk
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Capacity",type=integer,JSONPath=`.status.capacityBytes`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocatedBytes`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Trouble",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Healthy")].reason`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.spec.capacityBytes >= oldSelf.spec.capacityBytes || (has(oldSelf.status) && has(oldSelf.status.capacityBytes) && self.spec.capacityBytes >= oldSelf.status.capacityBytes)",message="spec.capacityBytes can only grow, or give up a growth that has not come about"
type UblkVolume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   UblkVolumeSpec   `json:"spec"`
	Status UblkVolumeStatus `json:"status,omitempty"`
}

// UblkVolumeList is a list of UblkVolume.
// +kubebuilder:object:root=true
type UblkVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []UblkVolume `json:"items"`
}
