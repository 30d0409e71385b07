package ublk

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

// Features is a set of UBLK_F_* flags of include/uapi/linux/ublk_cmd.h: what a
// driver offers, or what a device was made with.
type Features uint64

// The features this package knows by name. The first kernel that has each is
// in the table below; ask the kernel (Control.Features), never its version.
const (
	ZeroCopy            Features = 1 << 0
	CompleteInTask      Features = 1 << 1
	NeedGetData         Features = 1 << 2
	UserRecovery        Features = 1 << 3
	UserRecoveryReissue Features = 1 << 4
	Unprivileged        Features = 1 << 5
	IoctlEncoding       Features = 1 << 6
	UserCopy            Features = 1 << 7
	Zoned               Features = 1 << 8
	UserRecoveryFailIO  Features = 1 << 9
	UpdateSize          Features = 1 << 10
	AutoBufReg          Features = 1 << 11
	Quiesce             Features = 1 << 12
	PerIODaemon         Features = 1 << 13
	BufRegOffDaemon     Features = 1 << 14
	BatchIO             Features = 1 << 15
	Integrity           Features = 1 << 16
	SafeStop            Features = 1 << 17
	NoAutoPartScan      Features = 1 << 18
	SharedMemZeroCopy   Features = 1 << 19
	IODescSize          Features = 1 << 20
)

// featureTable is in bit order. The versions only explain a refusal: nothing
// in this package decides by them.
var featureTable = [...]struct{ name, since string }{
	{"ZERO_COPY", "6.15"},
	{"URING_CMD_COMP_IN_TASK", "6.0"},
	{"NEED_GET_DATA", "6.0"},
	{"USER_RECOVERY", "6.1"},
	{"USER_RECOVERY_REISSUE", "6.1"},
	{"UNPRIVILEGED_DEV", "6.3"},
	{"CMD_IOCTL_ENCODE", "6.4"},
	{"USER_COPY", "6.5"},
	{"ZONED", "6.6"},
	{"USER_RECOVERY_FAIL_IO", "6.13"},
	{"UPDATE_SIZE", "6.16"},
	{"AUTO_BUF_REG", "6.16"},
	{"QUIESCE", "6.16"},
	{"PER_IO_DAEMON", "6.16"},
	{"BUF_REG_OFF_DAEMON", "6.17"},
	{"BATCH_IO", "7.0"},
	{"INTEGRITY", "7.0"},
	{"SAFE_STOP_DEV", "7.0"},
	{"NO_AUTO_PART_SCAN", "7.0"},
	{"SHMEM_ZC", "7.1"},
	{"IO_DESC_SIZE", "7.3"},
}

// Has reports whether every feature of want is in f.
func (f Features) Has(want Features) bool { return f&want == want }

// Require returns nil if f has every feature of want. Otherwise the error names
// each one that is missing and the first kernel that has it, and matches
// errors.ErrUnsupported.
func (f Features) Require(want Features) error {
	missing := want &^ f
	if missing == 0 {
		return nil
	}
	var list []string
	for m := uint64(missing); m != 0; m &= m - 1 {
		bit := bits.TrailingZeros64(m)
		if bit < len(featureTable) {
			list = append(list, featureTable[bit].name+" (Linux "+featureTable[bit].since+")")
		} else {
			list = append(list, fmt.Sprintf("bit %d", bit))
		}
	}
	return fmt.Errorf("the ublk driver lacks %s: %w", strings.Join(list, ", "), errors.ErrUnsupported)
}

// Names lists the features in bit order, by the kernel's names without UBLK_F_;
// a bit this package does not know is "bit N".
func (f Features) Names() []string {
	var list []string
	for m := uint64(f); m != 0; m &= m - 1 {
		bit := bits.TrailingZeros64(m)
		if bit < len(featureTable) {
			list = append(list, featureTable[bit].name)
		} else {
			list = append(list, fmt.Sprintf("bit %d", bit))
		}
	}
	return list
}

func (f Features) String() string { return strings.Join(f.Names(), "|") }
