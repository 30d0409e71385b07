package controller

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

const mib = int64(1) << 20

// leastBytes is the smallest volume for each kind of use. mke2fs makes an ext4
// with a journal from a few MiB on; mkfs.xfs refuses less than 300 MB,
// mkfs.btrfs less than 109 MiB.
var leastBytes = map[string]int64{
	"ext4":  16 * mib,
	"xfs":   300 * mib,
	"btrfs": 128 * mib,
}

// leastSizes says the same to a person.
const leastSizes = "ext4 from 16 MiB, xfs from 300 MiB, btrfs from 128 MiB, raw block from 1 MiB"

// leastBlockBytes is the smallest raw block volume.
const leastBlockBytes = mib

// checkCapabilities returns the least size that serves all of them. The error is
// a *driver.InvalidError.
func checkCapabilities(caps []*csi.VolumeCapability) (leastSize int64, err error) {
	if len(caps) == 0 {
		return 0, &driver.InvalidError{Field: "volume_capabilities", Problem: "is empty", Remedy: "give at least one"}
	}
	leastSize = leastBlockBytes
	for i, c := range caps {
		field := fmt.Sprintf("volume_capabilities[%d]", i)
		if err := checkMode(field, c.GetAccessMode().GetMode()); err != nil {
			return 0, err
		}
		switch {
		case c.GetBlock() != nil:
		case c.GetMount() != nil:
			least, err := checkFSType(field, c.GetMount().GetFsType())
			if err != nil {
				return 0, err
			}
			leastSize = max(leastSize, least)
		default:
			return 0, &driver.InvalidError{Field: field + ".access_type", Problem: "is neither block nor mount"}
		}
	}
	return leastSize, nil
}

func checkMode(field string, mode csi.VolumeCapability_AccessMode_Mode) error {
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return nil
	}
	return &driver.InvalidError{Field: field + ".access_mode", Problem: mode.String() + " is not offered",
		Remedy: "a volume is on one node: use ReadWriteOnce or ReadWriteOncePod"}
}

func checkFSType(field, fsType string) (leastSize int64, err error) {
	if fsType == "" {
		fsType = "ext4"
	}
	least, ok := leastBytes[fsType]
	if !ok {
		names := make([]string, 0, len(leastBytes))
		for name := range leastBytes {
			names = append(names, name)
		}
		slices.Sort(names)
		return 0, &driver.InvalidError{Field: field + ".mount.fs_type", Problem: fmt.Sprintf("%q is not a file system that this driver makes", fsType),
			Remedy: "use " + driver.OneOf(names)}
	}
	return least, nil
}
