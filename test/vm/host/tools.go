package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Tool is a program or file that the rig needs of the host, and the Debian package that brings it.
type Tool struct {
	// Program is looked up in PATH and in the sbin directories; with a leading slash it is a path that must exist.
	Program string
	Package string
}

// Find returns the tool's path, "" if it is missing.
func (t Tool) Find() string {
	if filepath.IsAbs(t.Program) {
		if _, err := os.Stat(t.Program); err != nil {
			return ""
		}
		return t.Program
	}
	if p, err := exec.LookPath(t.Program); err == nil {
		return p
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, t.Program)); err == nil {
			return p
		}
	}
	return ""
}

// Missing returns the packages of the tools that are not there.
func Missing(tools []Tool) []string {
	var missing []string
	for _, t := range tools {
		if t.Find() == "" && !slices.Contains(missing, t.Package) {
			missing = append(missing, t.Package)
		}
	}
	return missing
}

// InstallCommand is what a person types to get the packages.
func InstallCommand(packages []string) string {
	return "apt-get install --no-install-recommends " + strings.Join(packages, " ")
}

// Need makes sure that the tools are installed: as root it installs what is missing with the system's apt, else it answers
// the command to do so.
func (h *Host) Need(ctx context.Context, tools ...Tool) error {
	if len(Missing(tools)) == 0 {
		return nil
	}
	unlock, err := h.Lock(ctx, "host-packages")
	if err != nil {
		return err
	}
	defer unlock()
	missing := Missing(tools)
	if len(missing) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("packages are missing on this machine; run: sudo %s", InstallCommand(missing))
	}
	return h.Step("installing "+strings.Join(missing, " "), 30*time.Second, func() error {
		install := Command{
			Args: append([]string{"apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", "install", "--no-install-recommends"}, missing...),
			Env:  []string{"DEBIAN_FRONTEND=noninteractive"},
		}
		// Lists may be absent or too old for the archive, so a failure is tried once more with new ones.
		if _, err := Run(ctx, install); err != nil {
			if _, err := Run(ctx, Command{Args: []string{"apt-get", "-q", "update"}}); err != nil {
				return err
			}
			if _, err := Run(ctx, install); err != nil {
				return err
			}
		}
		if still := Missing(tools); len(still) > 0 {
			return fmt.Errorf("still missing after the installation: %s", strings.Join(still, " "))
		}
		return nil
	})
}
