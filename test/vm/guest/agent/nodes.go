package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// makeStaticNodes makes the device nodes that modules want to be loaded by: whoever opens /dev/loop-control gets the loop driver,
// if the node is there before the driver is. On other systems udev does this, by the same list of depmod's (modules.devname). A
// kernel that has the drivers built in makes the nodes itself.
func makeStaticNodes() error {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	list, err := os.ReadFile(filepath.Join("/lib/modules", strings.TrimSpace(string(release)), "modules.devname"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without modules
	}
	if err != nil {
		return err
	}
	nodes, err := staticNodes(string(list))
	if err != nil {
		return err
	}
	for _, n := range nodes {
		path := filepath.Join("/dev", n.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := syscall.Mknod(path, n.mode, n.number); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make node %s: %w", path, err)
		}
	}
	return nil
}

// A staticNode is a device node as mknod(2) wants it; its name is below /dev.
type staticNode struct {
	name   string
	mode   uint32
	number int
}

// staticNodes reads lines of the form "MODULE NAME cMAJOR:MINOR".
func staticNodes(list string) ([]staticNode, error) {
	var nodes []staticNode
	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 3 || f[2] == "" || !filepath.IsLocal(f[1]) {
			return nil, fmt.Errorf("modules.devname: line %q: want MODULE NAME TYPE and number", line)
		}
		n := staticNode{name: f[1]}
		switch f[2][0] {
		case 'c':
			n.mode = syscall.S_IFCHR | 0o600
		case 'b':
			n.mode = syscall.S_IFBLK | 0o600
		default:
			return nil, fmt.Errorf("modules.devname: line %q: the type is neither c nor b", line)
		}
		major, minor, _ := strings.Cut(f[2][1:], ":")
		ma, err1 := strconv.ParseUint(major, 10, 12)
		mi, err2 := strconv.ParseUint(minor, 10, 20)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("modules.devname: line %q: %w", line, err)
		}
		// The encoding of mknod(2): the minor's low eight bits, the major, the rest of the minor.
		n.number = int(mi&0xff | ma<<8 | mi>>8<<20)
		nodes = append(nodes, n)
	}
	return nodes, nil
}
