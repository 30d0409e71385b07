package guest

import (
	"context"
	"embed"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// The agent's sources travel in the rig's binary, so that it can be compiled wherever that runs.
//
//go:embed agent wire
var agentSources embed.FS

const module = "github.com/csi-ublk/csi-ublk"

// agentBinary returns the path of the compiled agent.
func agentBinary(ctx context.Context, h *host.Host) (string, error) {
	parts := []string{"agent", runtime.Version()}
	files := map[string][]byte{}
	err := fs.WalkDir(agentSources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := agentSources.ReadFile(path)
		files[path] = b
		parts = append(parts, path, string(b))
		return err
	})
	if err != nil {
		return "", err
	}
	dir, err := h.Entry(ctx, "agent", host.Key(parts...), func(ctx context.Context, dir string) error {
		return h.Step("guest: compiling the agent", 0*time.Second, func() error { return compileAgent(ctx, files, dir) })
	})
	return filepath.Join(dir, "agent"), err
}

func compileAgent(ctx context.Context, files map[string][]byte, dir string) error {
	src := filepath.Join(dir, "src")
	files["go.mod"] = []byte("module " + module + "\n\ngo 1.24\n")
	for path, text := range files {
		if path != "go.mod" {
			path = "test/vm/guest/" + path
		}
		full := filepath.Join(src, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(full, text, 0o644); err != nil {
			return err
		}
	}
	build := host.Command{
		Args: []string{"go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(dir, "agent"), "./test/vm/guest/agent"},
		Dir:  src,
		Env:  []string{"CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=", "GOOS=linux", "GOARCH=" + runtime.GOARCH},
	}
	if _, err := host.Run(ctx, build); err != nil {
		return err
	}
	return os.RemoveAll(src)
}
