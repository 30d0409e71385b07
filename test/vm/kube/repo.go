package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const module = "github.com/csi-ublk/csi-ublk"

// Repo finds the directory of this repository from the working directory upwards.
func Repo() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module "+module+"\n") {
			return dir, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("find the repository: %w", err)
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the repository: no go.mod of %s in %s or above", module, wd)
		}
	}
}
