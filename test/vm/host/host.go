// Package host is what the rig needs of the machine it runs on: a cache whose entries are complete or absent, progress
// lines on long steps, Debian packages by way of an apt state of the rig's own, and the tools that must be installed.
package host

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Host carries the cache directory and the place where progress goes. Its methods may be called from several goroutines and
// several processes at once.
type Host struct {
	// Cache is the directory of everything that the rig builds. It may be removed at any time that no guest runs.
	Cache string
	// Out receives the progress lines; nil means silence.
	Out io.Writer
}

// New returns the Host of this user: the cache is $CSI_UBLK_CACHE, or csi-ublk in the user's cache directory. The directory
// is created.
func New(out io.Writer) (*Host, error) {
	dir := os.Getenv("CSI_UBLK_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find the cache directory (set CSI_UBLK_CACHE): %w", err)
		}
		dir = filepath.Join(base, "csi-ublk")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the cache directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the cache directory: %w", err)
	}
	return &Host{Cache: dir, Out: out}, nil
}
