package root

import (
	"os"
	"path/filepath"
)

// Install copies executable files of the host into a tree: programs maps their paths in the tree, which need no leading slash,
// to those on the host. Folders are made as needed; what has one of the paths already is overwritten.
func Install(tree string, programs map[string]string) error {
	for target, from := range programs {
		target = filepath.Join(tree, target)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(target, text, 0o755); err != nil {
			return err
		}
	}
	return nil
}
