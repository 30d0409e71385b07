package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/pool/command"
)

const wayLoop = "loop device"

// loopPods are what pods get with no driver like this one: losetup over a file
// like those of the volumes, in the same file system, then the same mkfs, mount
// and bind mount.
type loopPods struct {
	s       *station
	dir     string // of the files
	formats *mount.Formatter
	devices []string
}

func newLoopPods(s *station, most int) (*loopPods, error) {
	dir := filepath.Join(s.dir, "loop")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	formats, err := mount.NewFormatter(mount.Options{IntentDir: filepath.Join(dir, "formatting")})
	return &loopPods{s: s, dir: dir, formats: formats, devices: make([]string, most)}, err
}

func (*loopPods) name() string { return wayLoop }

func (l *loopPods) file(i int) string { return filepath.Join(l.dir, volumeID("v", i)) }

func (l *loopPods) prepare(n int) error {
	for i := range n {
		if err := os.WriteFile(l.file(i), nil, 0o600); err != nil {
			return err
		}
		if err := os.Truncate(l.file(i), podVolumeBytes); err != nil {
			return err
		}
	}
	return nil
}

func (l *loopPods) up(ctx context.Context, i int, fsType string) error {
	device, err := attachLoop(ctx, l.file(i))
	if err != nil {
		return err
	}
	l.devices[i] = device
	if err := l.formats.Format(ctx, "loop", volumeID("v", i), device, fsType); err != nil {
		return err
	}
	staging, target, err := podPaths(l.dir, i)
	if err != nil {
		return err
	}
	for _, dir := range []string{staging, target} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	if err := mountLoop(ctx, device, staging, fsType); err != nil {
		return err
	}
	return mount.Bind(staging, target, mount.Flags{})
}

// mountLoop tries again while another caller's losetup, which was told that this
// device is free, has it claimed for a moment.
func mountLoop(ctx context.Context, device, dir, fsType string) error {
	for {
		err := mount.Mount(device, dir, fsType, mount.Flags{})
		if !errors.Is(err, unix.EBUSY) || ctx.Err() != nil {
			return err
		}
	}
}

// attachLoop tries again when another caller was faster: losetup asks for a free
// device first and takes it afterwards.
func attachLoop(ctx context.Context, file string) (device string, err error) {
	for ctx.Err() == nil {
		out, err := exec.Command("losetup", "--find", "--show", "--direct-io=on", file).CombinedOutput()
		said := strings.TrimSpace(string(out))
		switch {
		case err == nil:
			return said, nil
		case !strings.Contains(said, "busy"):
			return "", fmt.Errorf("losetup %s: %w: %s", file, err, said)
		}
	}
	return "", ctx.Err()
}

func (l *loopPods) down(ctx context.Context, i int) error {
	staging, target, err := podPaths(l.dir, i)
	if err != nil {
		return err
	}
	for _, dir := range []string{target, staging} {
		if err := mount.Unmount(dir); err != nil {
			return err
		}
	}
	return command.Run(ctx, "losetup", "--detach", l.devices[i])
}

func (*loopPods) settled(context.Context) error { return nil }

// close unmounts and detaches what a run that was cut short has left.
func (l *loopPods) close(context.Context) error {
	errs := []error{unmountBelow(l.dir)}
	files, err := filepath.Glob(filepath.Join(l.dir, "v*"))
	errs = append(errs, err)
	for _, path := range files {
		errs = append(errs, detachLoop(path))
	}
	return errors.Join(errs...)
}

func detachLoop(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	device, err := blockdev.FindLoop(f)
	if err != nil || device == "" {
		return err
	}
	return blockdev.DetachLoop(device)
}

// unmountBelow unmounts everything below dir, the last mounted first.
func unmountBelow(dir string) error {
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read mountinfo: %w", err)
	}
	var errs []error
	for i := len(found) - 1; i >= 0; i-- {
		errs = append(errs, mount.Unmount(found[i].Mountpoint))
	}
	return errors.Join(errs...)
}
