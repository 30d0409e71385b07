package pool

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// Kind says what a pool is made of.
type Kind string

const (
	KindPath   Kind = "path"   // an existing directory
	KindDevice Kind = "device" // a blank disk, partition or logical volume
	KindImage  Kind = "image"  // a file on the disk of the state directory
)

// MinImageBytes is the least size of an image pool: mkfs.xfs makes nothing below
// 300 MB, and its log would take a large part of anything near that.
const MinImageBytes = 512 << 20

// Options says what a pool is made of and how much of it may be promised.
type Options struct {
	// Name of the pool: ^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$
	Name string
	Kind Kind
	// StateDir is the driver's state directory; "" means /var/lib/csi-ublk.
	StateDir string
	// Path is the directory of a path pool, absolute.
	Path string
	// Device is the disk of a device pool, an absolute path.
	Device string
	// SizeBytes is the size of an image pool, at least MinImageBytes. In a path
	// pool it limits what may be promised; 0 means the whole file system. Unused
	// in a device pool.
	SizeBytes int64
	// ReserveBytes or, if that is 0, ReservePercent of the size is never
	// promised to volumes.
	ReserveBytes   int64
	ReservePercent int
	// Overcommit is how many bytes may be promised to volumes for each byte of the
	// pool, from 1 to 100; 0 means 1: nothing is promised twice. Volumes are sparse;
	// where their users write more than there is, they get ENOSPC.
	Overcommit float64
	// FSType is what a device or image is formatted with: "xfs" (also "") or
	// "btrfs". Unused in a path pool.
	FSType string
	// Preallocate makes an image take its full size on the disk at once, so that
	// other users of that disk can't take it away.
	Preallocate bool
	// ReclaimBytesPerSecond bounds how fast the space of deleted volumes is given
	// back, which costs journal writes and discards; 0 means 1 GiB/s.
	ReclaimBytesPerSecond int64
	// MaxTemplates is how many file-system templates the pool keeps, where it has
	// reflink; 0 means none, and those that it has are removed.
	MaxTemplates int
	// OnChange, if not nil, is called after the space of the pool changed: a
	// volume was created or deleted, its space was given back, or a template came
	// or went. It must not block and must not call the pool.
	OnChange func()
}

var (
	validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)
	validID   = regexp.MustCompile(`^[a-z0-9][-a-z0-9.]{0,62}$`)
)

// ErrInvalid is matched by errors about options and ids.
var ErrInvalid = errors.New("invalid")

// CheckID refuses an id that may not become an element of a path.
func CheckID(id string) error {
	if !validID.MatchString(id) || strings.Contains(id, "..") {
		return fmt.Errorf("volume id %q: must match %s without two dots in a row: %w", id, validID, ErrInvalid)
	}
	return nil
}

// withDefaults fills zero values and checks the rest, before any effect.
func (o Options) withDefaults() (Options, error) {
	bad := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("pool %q: %s: %w", o.Name, fmt.Sprintf(format, args...), ErrInvalid)
	}
	if o.StateDir == "" {
		o.StateDir = "/var/lib/csi-ublk"
	}
	if o.FSType == "" {
		o.FSType = "xfs"
	}
	if o.ReclaimBytesPerSecond == 0 {
		o.ReclaimBytesPerSecond = 1 << 30
	}
	if o.Overcommit == 0 {
		o.Overcommit = 1
	}
	switch {
	case !validName.MatchString(o.Name):
		return bad("name must match %s", validName)
	case !filepath.IsAbs(o.StateDir):
		return bad("the state directory %q is not absolute", o.StateDir)
	case o.FSType != "xfs" && o.FSType != "btrfs":
		return bad("fsType %q: pools are formatted xfs or btrfs", o.FSType)
	case o.ReserveBytes < 0 || o.ReservePercent < 0 || o.ReservePercent > 90:
		return bad("reserve must be a size, or a percentage from 0%% to 90%%")
	case o.SizeBytes < 0 || o.ReclaimBytesPerSecond < 0 || o.MaxTemplates < 0:
		return bad("sizes, rates and numbers can't be negative")
	case !(o.Overcommit >= 1 && o.Overcommit <= 100): // NaN is neither
		return bad("overcommit %v: must be from 1, which promises nothing twice, to 100", o.Overcommit)
	case o.Kind != KindPath && o.Path != "":
		return bad("path goes with kind path only")
	case o.Kind != KindDevice && o.Device != "":
		return bad("device goes with kind device only")
	}
	switch o.Kind {
	case KindPath:
		if !filepath.IsAbs(o.Path) {
			return bad("path %q: kind path needs the absolute path of a directory", o.Path)
		}
		o.Path = filepath.Clean(o.Path)
	case KindDevice:
		if !filepath.IsAbs(o.Device) {
			return bad("device %q: kind device needs the absolute path of a disk", o.Device)
		}
		if o.SizeBytes != 0 {
			return bad("size: a device pool takes the whole device; remove size")
		}
	case KindImage:
		if o.SizeBytes < MinImageBytes {
			return bad("size %d: an image pool needs at least 512Mi", o.SizeBytes)
		}
		o.SizeBytes &^= 4095
	default:
		return bad("kind %q: must be path, device or image", o.Kind)
	}
	return o, nil
}

func (o Options) root() string      { return filepath.Join(o.StateDir, "pools", o.Name) }
func (o Options) imagePath() string { return filepath.Join(o.StateDir, "images", o.Name+".img") }
