package node

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
)

// Keys of volume_context, put there by CreateVolume.
const (
	contextPool       = "pool"
	contextQueues     = "queues"
	contextQueueDepth = "queueDepth"
	defaultPool       = "default"
)

// target is a request's path that is to be a mount point.
func checkPath(field, path string) error {
	switch {
	case path == "":
		return &driver.InvalidError{Field: field, Problem: "is empty"}
	case !filepath.IsAbs(path):
		return &driver.InvalidError{Field: field, Problem: fmt.Sprintf("%q is not absolute", path)}
	}
	return nil
}

func checkVolumeID(id string) error {
	if id == "" {
		return &driver.InvalidError{Field: "volume_id", Problem: "is empty"}
	}
	return nil
}

// access is what a volume capability asks of the node.
type access struct {
	block  bool
	fsType string
	flags  mount.Flags
	// readOnly: nobody writes through this device or mount.
	readOnly bool
	// single: one target path at a time.
	single bool
}

var defaultFSType = mount.FSTypes[0]

func parseAccess(c *csi.VolumeCapability) (access, error) {
	var a access
	if c == nil {
		return a, &driver.InvalidError{Field: "volume_capability", Problem: "is missing"}
	}
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		a.single = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		a.single, a.readOnly = true, true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	default:
		return a, &driver.InvalidError{Field: "volume_capability.access_mode", Problem: mode.String() + " is not possible with a volume that lives on one node",
			Remedy: "use ReadWriteOnce or ReadWriteOncePod"}
	}
	switch t := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		a.block = true
		return a, nil
	case *csi.VolumeCapability_Mount:
		return a, a.parseMount(t.Mount)
	}
	return a, &driver.InvalidError{Field: "volume_capability", Problem: "is neither mount nor block"}
}

func (a *access) parseMount(m *csi.VolumeCapability_MountVolume) error {
	a.fsType = m.GetFsType()
	if a.fsType == "" {
		a.fsType = defaultFSType
	}
	if !slices.Contains(mount.FSTypes, a.fsType) {
		return &driver.InvalidError{Field: "volume_capability.mount.fs_type", Problem: fmt.Sprintf("%q is not a file system that this driver makes", a.fsType),
			Remedy: "use " + driver.OneOf(mount.FSTypes)}
	}
	if m.GetVolumeMountGroup() != "" {
		return &driver.InvalidError{Field: "volume_capability.mount.volume_mount_group", Problem: "is not supported"}
	}
	var err error
	if a.flags, err = mount.ParseFlags(m.GetMountFlags()); err != nil {
		return &driver.InvalidError{Field: "volume_capability.mount.mount_flags", Problem: err.Error()}
	}
	if a.readOnly {
		a.flags = a.flags.WithReadOnly()
	}
	a.readOnly = a.flags.ReadOnly()
	return nil
}

// deviceOptions are the device's in a volume_context.
type deviceOptions struct {
	pool               string
	queues, queueDepth uint32
}

// Limits of a device, as the controller has them for the parameters of a class.
const (
	maxQueues     = 32
	maxQueueDepth = 1024
)

func inContext(key string) string { return fmt.Sprintf("volume_context[%q]", key) }

// parseContext reads what CreateVolume made, or a pod's author wrote; called says what a
// key is to the caller.
func parseContext(c map[string]string, called func(key string) string) (deviceOptions, error) {
	o := deviceOptions{pool: c[contextPool]}
	if o.pool == "" {
		o.pool = defaultPool
	}
	for _, k := range []struct {
		key  string
		most uint64
		to   *uint32
	}{{contextQueues, maxQueues, &o.queues}, {contextQueueDepth, maxQueueDepth, &o.queueDepth}} {
		text, ok := c[k.key]
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n < 1 || n > k.most {
			return o, &driver.InvalidError{Field: called(k.key), Problem: fmt.Sprintf("%q is not a number from 1 to %d", text, k.most)}
		}
		*k.to = uint32(n)
	}
	return o, nil
}
