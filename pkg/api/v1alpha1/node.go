package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Condition types of a UblkNode.
const (
	// NodeReady is True while the node plugin runs, reaches the device server and
	// has its pools. It turns False when the plugin is stopped in order.
	NodeReady = "Ready"
	// NodeKernelHealthy is False when a ublk control command passed its deadline:
	// the node takes no new volumes, those it has go on.
	NodeKernelHealthy = "KernelHealthy"
)

// PoolStatus is the state of one pool of a node.
type PoolStatus struct {
	// Name of the pool.
	Name string `json:"name"`
	// Kind: path, device or image.
	Kind string `json:"kind"`
	// FSType is the file system that holds the pool.
	FSType string `json:"fsType,omitempty"`
	// Reflink says whether the file system can share extents between files.
	Reflink bool `json:"reflink"`
	// CapacityBytes is what may be promised to volumes: size less the reserve, times
	// the pool's overcommit.
	CapacityBytes int64 `json:"capacityBytes"`
	// FreeBytes is the file system's free space.
	FreeBytes int64 `json:"freeBytes"`
	// ReclaimingBytes is the space of deleted volumes that is not yet free; it
	// can't be promised again.
	ReclaimingBytes int64 `json:"reclaimingBytes"`
	// EphemeralBytes are the full sizes of the pods' inline volumes, which have
	// no object of their own.
	EphemeralBytes int64 `json:"ephemeralBytes,omitempty"`
	// StrayBytes are those of volumes and snapshots that the pool has and that no
	// object names, as after their node was deleted and has come back. The driver
	// never removes them by itself.
	StrayBytes int64 `json:"strayBytes,omitempty"`
	// Ready is false when the pool does not work; Message then says why.
	Ready   bool   `json:"ready"`
	Message string `json:"message,omitempty"`
}

// KernelStatus says what a node's kernel can do.
type KernelStatus struct {
	Release string `json:"release,omitempty"`
	// BootID tells kernels apart: nodes with the same one share a kernel.
	BootID string `json:"bootID,omitempty"`
	// Features are the names of the ublk features that the kernel reports.
	Features []string `json:"features,omitempty"`
	// DeleteKind says how DEL_DEV behaves: NOWAIT, LOCKED or UNLOCKED.
	DeleteKind string `json:"deleteKind,omitempty"`
}

// SlotStatus counts ublk devices. Both are optional to the API server, since a
// merge patch leaves out a count that is, as before, zero.
type SlotStatus struct {
	// +optional
	Max int32 `json:"max"`
	// +optional
	Used int32 `json:"used"`
}

// SnapshotMetadataEndpoint is where a node's plugin tells which blocks of its snapshots
// are allocated or have changed.
type SnapshotMetadataEndpoint struct {
	// Address is a host and a port.
	// +kubebuilder:validation:MinLength=1
	Address string `json:"address"`
	// CertificateSHA256 is the fingerprint, in hex, of the one certificate that it shows.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	CertificateSHA256 string `json:"certificateSHA256"`
}

// UblkNodeStatus is written by the node's plugin.
type UblkNodeStatus struct {
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=name
	Pools  []PoolStatus `json:"pools,omitempty"`
	Kernel KernelStatus `json:"kernel,omitempty"`
	Slots  SlotStatus   `json:"slots,omitempty"`
	// DriverVersion is the version of the node plugin.
	DriverVersion string `json:"driverVersion,omitempty"`
	// SnapshotMetadata is nil where the plugin does not offer it.
	// +optional
	SnapshotMetadata *SnapshotMetadataEndpoint `json:"snapshotMetadata,omitempty"`
	// Conditions: Ready, KernelHealthy.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// UblkNode is what one Kubernetes node offers; it has that node's name.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=un,categories=csi-ublk
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.status.pools[*].name`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.pools[*].freeBytes`
// +kubebuilder:printcolumn:name="Devices",type=integer,JSONPath=`.status.slots.used`
// +kubebuilder:printcolumn:name="Kernel",type=string,JSONPath=`.status.kernel.release`
// +kubebuilder:printcolumn:name="Delete",type=string,JSONPath=`.status.kernel.deleteKind`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type UblkNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status UblkNodeStatus `json:"status,omitempty"`
}

// UblkNodeList is a list of UblkNode.
// +kubebuilder:object:root=true
type UblkNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []UblkNode `json:"items"`
}
