package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/pool/command"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// FSTypes are the file systems that Format makes; the first is the default.
var FSTypes = []string{"ext4", "xfs", "btrfs"}

// Options configures a Formatter.
type Options struct {
	// IntentDir is where a mkfs that has begun and not ended leaves its mark; it
	// is made when needed. Best on a tmpfs.
	IntentDir string
	// Concurrent is how many mkfs run at a time in each pool, and how many fsck beside
	// them; 0 means as many as the process has CPUs, and at least 2.
	Concurrent int
}

// Formatter makes and checks file systems.
type Formatter struct {
	intents    string
	bootID     string
	concurrent int

	mu       sync.Mutex
	slots    map[string]*slots // by pool
	versions map[string]string // of mkfs, by file system
}

// slots are a pool's own: the volumes of a slow disk must not hold up those of a fast
// one. So have checks theirs: a slow repair must not hold up new volumes.
type slots struct{ mkfs, checks *semaphore.Weighted }

func (f *Formatter) slotsOf(pool string) *slots {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.slots[pool]
	if s == nil {
		n := int64(f.concurrent)
		s = &slots{semaphore.NewWeighted(n), semaphore.NewWeighted(n)}
		f.slots[pool] = s
	}
	return s
}

// NewFormatter returns a Formatter.
func NewFormatter(o Options) (*Formatter, error) {
	if o.Concurrent == 0 {
		o.Concurrent = max(2, runtime.GOMAXPROCS(0))
	}
	id, err := BootID()
	if err != nil {
		return nil, err
	}
	return &Formatter{
		intents: o.IntentDir, bootID: id, concurrent: o.Concurrent,
		slots:    make(map[string]*slots),
		versions: make(map[string]string),
	}, nil
}

// BootID is an id that changes with every boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return string(bytes.TrimSpace(id)), nil
}

// ContentError says that a volume holds something else than the file system that
// was asked for, and that nothing was changed. It matches syscall.EBUSY, as what is
// in use by its owner.
type ContentError struct {
	Device string
	Wanted string
	Found  blockdev.Content
}

func (e *ContentError) Error() string {
	return fmt.Sprintf("device %s holds %s, and %s was asked for; it is left as it is: use fsType %[4]q, or a new volume", e.Device, e.Found, e.Wanted, e.Found.Type)
}

func (e *ContentError) Is(target error) bool { return target == unix.EBUSY }

// NeedsFormat says whether the device of a volume is to be formatted. It is not if
// it holds fsType already; if it holds anything else the error is a *ContentError.
func (f *Formatter) NeedsFormat(ctx context.Context, volume, device, fsType string) (bool, error) {
	if f.Interrupted(volume) {
		return true, nil
	}
	content, err := blockdev.Probe(ctx, device)
	if err != nil {
		return false, err
	}
	if content.Blank {
		return true, nil
	}
	if content.Type != fsType || content.Table {
		return false, &ContentError{Device: device, Wanted: fsType, Found: content}
	}
	return false, nil
}

// Format makes a file system on a device that NeedsFormat said yes about. It waits
// for a slot of the pool first. When it is cut short, the next NeedsFormat says yes again.
func (f *Formatter) Format(ctx context.Context, pool, volume, device, fsType string) error {
	name, args, err := mkfs(fsType)
	if err != nil {
		return err
	}
	turn := f.slotsOf(pool).mkfs
	if err := turn.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for one of the mkfs slots of pool %s: %w", pool, err)
	}
	defer turn.Release(1)
	if err := f.begin(volume); err != nil {
		return fmt.Errorf("note that mkfs begins: %w", err)
	}
	if err := command.Run(ctx, name, append(args, device)...); err != nil {
		return err
	}
	// Before anybody can mount it: a mark that outlives the first write would have
	// it formatted again.
	if err := os.Remove(f.intent(volume)); err != nil {
		return fmt.Errorf("note that mkfs ended: %w", err)
	}
	return nil
}

func mkfs(fsType string) (name string, args []string, err error) {
	switch fsType {
	case "ext4":
		// Volumes are thin: no discard, no writing of what reads zeros anyway,
		// and no blocks kept for root.
		return "mkfs.ext4", []string{"-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"}, nil
	case "xfs":
		return "mkfs.xfs", []string{"-q", "-f", "-K"}, nil
	case "btrfs":
		return "mkfs.btrfs", []string{"--quiet", "--force", "--nodiscard"}, nil
	}
	return "", nil, fmt.Errorf("file system %q: this driver makes %s: %w", fsType, strings.Join(FSTypes, ", "), errors.ErrUnsupported)
}

// Check repairs what an unclean end has left in a file system that is not mounted.
// XFS and Btrfs need nothing: mounting replays their logs. It waits for a slot of the
// pool first.
func (f *Formatter) Check(ctx context.Context, pool, device, fsType string) error {
	if fsType != "ext4" {
		return nil
	}
	turn := f.slotsOf(pool).checks
	if err := turn.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for one of the fsck slots of pool %s: %w", pool, err)
	}
	defer turn.Release(1)
	// Not cut short by a deadline: it would begin anew, for ever.
	err := command.Run(context.WithoutCancel(ctx), "fsck.ext4", "-p", device)
	var exit *exec.ExitError
	// 1: repaired; 2: repaired, and a root file system would need a reboot.
	if errors.As(err, &exit) && exit.ExitCode() > 0 && exit.ExitCode() <= 2 {
		return nil
	}
	return err
}

func (f *Formatter) intent(volume string) string { return filepath.Join(f.intents, volume) }

// begin leaves the mark. It needs no sync: after a reboot it does not count, so
// that an old mark which a crash of the machine brought back can't destroy data.
func (f *Formatter) begin(volume string) error {
	if err := os.MkdirAll(f.intents, 0o700); err != nil {
		return err
	}
	return os.WriteFile(f.intent(volume), []byte(f.bootID), 0o600)
}

// Interrupted says whether a mkfs of ours began on the volume, when it was blank,
// and never ended.
func (f *Formatter) Interrupted(volume string) bool {
	mark, err := os.ReadFile(f.intent(volume))
	return err == nil && string(mark) == f.bootID
}

// Forget removes the mark of a volume that is no more.
func (f *Formatter) Forget(volume string) error {
	if err := os.Remove(f.intent(volume)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
