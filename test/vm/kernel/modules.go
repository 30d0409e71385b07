package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ModuleFiles returns the files of the modules and of all that they depend on, in an order in which they can be loaded. What is
// built into the kernel is left out, and so is one whose name begins with "?" and that this kernel lacks.
func (k Kernel) ModuleFiles(names ...string) ([]string, error) {
	dir := filepath.Join(k.Modules, k.Release)
	dep, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("read modules: %w", err)
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("read modules: %w", err)
	}
	files, err := loadOrder(string(dep), string(builtin), names)
	if err != nil {
		return nil, err
	}
	for i, f := range files {
		files[i] = filepath.Join(dir, f)
	}
	return files, nil
}

// loadOrder resolves names with the text of modules.dep, which lists after each file all that it needs, the deepest last.
func loadOrder(dep, builtin string, names []string) ([]string, error) {
	needs, files := map[string][]string{}, map[string]string{}
	for _, line := range strings.Split(dep, "\n") {
		if file, rest, ok := strings.Cut(line, ":"); ok {
			needs[file] = strings.Fields(rest)
			files[moduleName(file)] = file
		}
	}
	inside := map[string]bool{}
	for _, file := range strings.Fields(builtin) {
		inside[moduleName(file)] = true
	}
	var order []string
	for _, name := range names {
		name, optional := strings.CutPrefix(name, "?")
		name = moduleName(name)
		file, ok := files[name]
		if !ok {
			if inside[name] || optional {
				continue
			}
			return nil, fmt.Errorf("this kernel has no module %s", name)
		}
		chain := slices.Clone(needs[file])
		slices.Reverse(chain)
		for _, f := range append(chain, file) {
			if !slices.Contains(order, f) {
				order = append(order, f)
			}
		}
	}
	return order, nil
}

// moduleName is the name of the module in a file, as the kernel writes it.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
