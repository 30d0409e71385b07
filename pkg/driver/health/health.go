// Package health says what can be wrong with a volume, in the words that the node, the
// controller and the objects share: each reason stands for one kind of trouble of the CSI
// health calls.
package health

import "github.com/container-storage-interface/spec/lib/go/csi"

// Reason is what is wrong, in CamelCase: the reason of a health entry in CSI's sense and
// of the condition Healthy of a UblkVolume.
type Reason string

// What a node sees of a volume.
const (
	// FlushLost: a flush of the volume's file failed. What it should have saved may be
	// lost, so the volume answers EIO until it is detached.
	FlushLost Reason = "FlushLost"
	// DeviceFailed: the device does not work any more.
	DeviceFailed Reason = "DeviceFailed"
	// DeviceGone: the volume is in use and has no device.
	DeviceGone Reason = "DeviceGone"
	// Recovering: the device's I/O waits for longer than a worker takes to come back.
	Recovering Reason = "Recovering"
	// IOErrors: requests failed lately.
	IOErrors Reason = "IOErrors"
	// LimitReached: requests wait because of the volume's limits.
	LimitReached Reason = "LimitReached"
	// PoolFull: the pool has no room for what the volume may still write.
	PoolFull Reason = "PoolFull"
	// ServerUnavailable: the device server of the node does not answer.
	ServerUnavailable Reason = "ServerUnavailable"
)

// What the objects say. PoolMissing, PoolFailed, FileMissing, FileSize and NodeGone are
// the reasons of a UblkVolume that is not ready.
const (
	PoolMissing  Reason = "PoolMissing"
	PoolFailed   Reason = "PoolFailed"
	FileMissing  Reason = "FileMissing"
	FileSize     Reason = "FileSize"
	NodeGone     Reason = "NodeGone"
	NodeNotReady Reason = "NodeNotReady"
)

var kinds = map[Reason]csi.VolumeHealthErrorType{
	FlushLost:         csi.VolumeHealthErrorType_DATA_LOSS,
	FileMissing:       csi.VolumeHealthErrorType_DATA_LOSS,
	NodeGone:          csi.VolumeHealthErrorType_DATA_LOSS,
	DeviceFailed:      csi.VolumeHealthErrorType_INACCESSIBLE,
	DeviceGone:        csi.VolumeHealthErrorType_INACCESSIBLE,
	Recovering:        csi.VolumeHealthErrorType_INACCESSIBLE,
	ServerUnavailable: csi.VolumeHealthErrorType_INACCESSIBLE,
	PoolMissing:       csi.VolumeHealthErrorType_INACCESSIBLE,
	PoolFailed:        csi.VolumeHealthErrorType_INACCESSIBLE,
	NodeNotReady:      csi.VolumeHealthErrorType_INACCESSIBLE,
	FileSize:          csi.VolumeHealthErrorType_DEGRADED,
	IOErrors:          csi.VolumeHealthErrorType_DEGRADED,
	LimitReached:      csi.VolumeHealthErrorType_DEGRADED,
	PoolFull:          csi.VolumeHealthErrorType_DEGRADED,
}

// Known says whether a reason is one of trouble with a volume.
func Known(r Reason) bool {
	_, ok := kinds[r]
	return ok
}

// A Problem is one thing that is wrong with one volume.
type Problem struct {
	Reason  Reason
	Message string // for a person
}

// Volume describes a volume's problems for CSI; one reason is named once, as the spec
// demands (VolumeHealth).
func Volume(id string, problems []Problem) *csi.VolumeHealth {
	h := &csi.VolumeHealth{VolumeId: id}
	seen := make(map[Reason]bool)
	for _, p := range problems {
		if seen[p.Reason] {
			continue
		}
		seen[p.Reason] = true
		h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: kinds[p.Reason], Reason: string(p.Reason), Message: p.Message,
		})
	}
	return h
}

// fullBytes is the free space below which a pool counts as full: a burst of writes takes
// more.
const fullBytes = 64 << 20

// Full says whether a pool with so much free space counts as full. Volumes in it may get
// ENOSPC then, if others than the driver write to its file system or space was promised
// more than once.
func Full(freeBytes int64) bool { return freeBytes < fullBytes }
