package node

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool/mountpoint"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// published knows where each disk is mounted, for access modes that allow one
// target path only. The mount table is read once, for what a former plugin
// published; to read it in every call would cost more with every volume.
type published struct {
	mu      sync.Mutex
	targets map[string]uint64 // path → number of the disk
	of      map[uint64][]string
}

// load reads the mount table, unless it has been read.
func (p *published) load() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.targets != nil {
		return nil
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("read mountinfo: %w", err)
	}
	p.targets, p.of = make(map[string]uint64), make(map[uint64][]string)
	for _, m := range mounts {
		switch {
		case m.FSType == "devtmpfs" && strings.HasPrefix(m.Root, "/ublkb"):
			// A raw volume's device node; the entry does not say which number.
			if at, err := mountpoint.At(m.Mountpoint); err == nil && at.IsBlock() {
				p.note(m.Mountpoint, at.Rdev)
			}
		case m.FSType == "btrfs" && strings.HasPrefix(m.Source, "/dev/ublkb"):
			// The entry has a number that stands for no device.
			if at, err := mountpoint.At(m.Mountpoint); err == nil {
				p.note(m.Mountpoint, at.Device)
			}
		case strings.HasPrefix(m.Source, "/dev/ublkb"):
			p.note(m.Mountpoint, unix.Mkdev(uint32(m.Major), uint32(m.Minor)))
		}
	}
	return nil
}

// note needs p.mu.
func (p *published) note(target string, disk uint64) {
	if p.targets[target] == disk {
		return
	}
	p.drop(target)
	p.targets[target] = disk
	p.of[disk] = append(p.of[disk], target)
}

// drop needs p.mu.
func (p *published) drop(target string) {
	disk, ok := p.targets[target]
	if !ok {
		return
	}
	delete(p.targets, target)
	p.of[disk] = slices.DeleteFunc(p.of[disk], func(other string) bool { return other == target })
	if len(p.of[disk]) == 0 {
		delete(p.of, disk)
	}
}

// add notes that a disk is published at target, remove that nothing is.
func (p *published) add(target string, disk uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.targets != nil { // else load will see it
		p.note(target, disk)
	}
}

func (p *published) remove(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(target)
}

// single refuses a target path if the disk is published at another one. Paths in
// except, the staging path, do not count.
func (p *published) single(target string, disk uint64, except string) error {
	other, err := p.anywhere(disk, target, except)
	if err == nil && other != "" {
		err = status.Errorf(codes.FailedPrecondition, "the access mode allows one target path, and the volume is published at %s", other)
	}
	return err
}

// anywhere returns a path where a disk is published, other than those in except; "" if
// there is none.
func (p *published) anywhere(disk uint64, except ...string) (string, error) {
	if err := p.load(); err != nil {
		return "", err
	}
	p.mu.Lock()
	others := slices.Clone(p.of[disk])
	p.mu.Unlock()
	for _, other := range others {
		if slices.Contains(except, other) {
			continue
		}
		// The kernel gives numbers away again, and others may have unmounted it.
		at, err := mount.At(other)
		if err != nil {
			return "", err
		}
		if at.Mounted && (at.Device == disk || at.Rdev == disk) {
			return other, nil
		}
		p.remove(other)
	}
	return "", nil
}
