package server

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// readBootID returns an id that changes with every boot.
func readBootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// maxDevicesPath is the driver's limit, of all devices or only of unprivileged
// ones, as the kernel will have it.
const maxDevicesPath = "/sys/module/ublk_drv/parameters/ublks_max"

// raiseKernelLimit lifts the driver's limit so that it does not stop this server
// before its own does. A kernel that has no such limit needs nothing.
func raiseKernelLimit(path string, want uint32) error {
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read device limit: %w", err)
	}
	have, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return fmt.Errorf("read device limit %s: %w", path, err)
	}
	if have >= uint64(want) {
		return nil
	}
	if err := os.WriteFile(path, []byte(strconv.FormatUint(uint64(want), 10)), 0); err != nil {
		return fmt.Errorf("raise device limit from %d to %d: %w", have, want, err)
	}
	return nil
}

func (s *Server) info() (*serverv1.InfoResponse, error) {
	used, err := ublk.Devices()
	if err != nil {
		return nil, err
	}
	m := s.kernel.wedgedMessage()
	return &serverv1.InfoResponse{
		KernelRelease: kernelRelease(), BootId: s.bootID,
		Features:   s.kernel.features().Names(),
		DeleteKind: s.kernel.deleteKind().String(),
		DevicesMax: s.options.MaxDevices, DevicesUsed: uint32(len(used)),
		Attached: uint32(s.table.attachedCount()), Releasing: uint32(s.table.releasingCount() + s.table.leftoverCount()),
		Wedged: m != "", WedgedMessage: m, Version: s.options.Version,
	}, nil
}
