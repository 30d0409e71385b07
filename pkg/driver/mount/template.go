package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/pool/command"
)

// templateArgs are more options of mkfs for a template: all that it would ask the
// device for, and what lets a copy have its own UUID (package fsid).
var templateArgs = map[string][]string{
	// The file reads zeros and is not written by others, so that inode tables need
	// no zeroing, now or by the kernel after each clone's first mount. A block of
	// 4096 bytes, like a sector of XFS, goes with devices of any block size.
	"ext4": {"-b", "4096", "-O", "metadata_csum_seed", "-E", "nodiscard,assume_storage_prezeroed=1,lazy_itable_init=0,lazy_journal_init=1"},
	"xfs":  {"-s", "size=4096"},
}

// mkfsConfig decides with the options what mkfs.ext4 makes; mkfs.xfs has none.
const mkfsConfig = "/etc/mke2fs.conf"

// HasTemplate says whether volumes with a file system can be cloned from a template. Btrfs
// has its UUID in every block of metadata.
func HasTemplate(fsType string) bool {
	_, ok := templateArgs[fsType]
	return ok
}

// Template returns the template that volumes of a pool with a file system are cloned
// from. Making it takes a mkfs slot. The error matches errors.ErrUnsupported if there is
// none for fsType.
func (f *Formatter) Template(ctx context.Context, poolName, fsType string) (pool.Template, error) {
	name, args, err := mkfs(fsType)
	if err != nil {
		return pool.Template{}, err
	}
	more, ok := templateArgs[fsType]
	if !ok {
		return pool.Template{}, fmt.Errorf("templates of %s: %w", fsType, errors.ErrUnsupported)
	}
	args = append(args, more...)
	version, err := f.version(ctx, fsType, name)
	if err != nil {
		return pool.Template{}, err
	}
	return pool.Template{
		FSType: fsType,
		Recipe: version + "\x00" + strings.Join(args, "\x00"),
		Make: func(ctx context.Context, path string) error {
			turn := f.slotsOf(poolName).mkfs
			if err := turn.Acquire(ctx, 1); err != nil {
				return fmt.Errorf("wait for one of the mkfs slots of pool %s: %w", poolName, err)
			}
			defer turn.Release(1)
			return command.Run(ctx, name, append(args, path)...)
		},
	}, nil
}

// version is what mkfs says of itself, asked once, and its configuration.
func (f *Formatter) version(ctx context.Context, fsType, name string) (string, error) {
	f.mu.Lock()
	version, ok := f.versions[fsType]
	f.mu.Unlock()
	if ok {
		return version, nil
	}
	version, err := command.Output(ctx, name, "-V")
	if err != nil {
		return "", err
	}
	if fsType == "ext4" {
		config, err := os.ReadFile(mkfsConfig)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("read configuration of %s: %w", name, err)
		}
		version += string(config)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.versions[fsType] = version
	return version, nil
}
