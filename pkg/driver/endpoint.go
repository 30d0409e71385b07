package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ParseEndpoint returns the socket path of a CSI endpoint: unix:///path,
// unix:/path or a plain absolute path (CSI spec, CSI_ENDPOINT).
func ParseEndpoint(endpoint string) (path string, err error) {
	path = endpoint
	if rest, ok := strings.CutPrefix(endpoint, "unix:"); ok {
		path = rest
		if slashes, ok := strings.CutPrefix(rest, "//"); ok {
			path = slashes
		}
	}
	if !filepath.IsAbs(path) {
		return "", &InvalidError{Field: "endpoint", Problem: fmt.Sprintf("%q is not a unix socket", endpoint),
			Remedy: "use unix:///absolute/path.sock"}
	}
	// sun_path holds 108 bytes with its NUL; bind(2) would say only EINVAL.
	if len(path) > 107 {
		return "", &InvalidError{Field: "endpoint", Problem: fmt.Sprintf("%q is longer than the 107 bytes of a unix socket's path", path)}
	}
	return filepath.Clean(path), nil
}

// Listen opens the socket of a CSI endpoint. A socket that a dead process left
// behind is replaced; one that still answers is an error, as is any other file.
// Closing the listener removes the socket.
func Listen(endpoint string) (net.Listener, error) {
	path, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make directory of socket: %w", err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on %s: there is something that is not a socket", path)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return fmt.Errorf("listen on %s: another process serves this socket", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}
