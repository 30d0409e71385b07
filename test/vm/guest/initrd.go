package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/csi-ublk/csi-ublk/test/vm/guest/wire"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
)

// cpio writes an archive of the kind that the kernel unpacks as its initial file system ("newc").
type cpio struct {
	buf   bytes.Buffer
	inode int
}

const (
	modeDir  = 0o040755
	modeFile = 0o100644
	modeExec = 0o100755
)

func (c *cpio) add(name string, mode int, data []byte) {
	c.inode++
	links := 1
	if mode == modeDir {
		links = 2
	}
	fmt.Fprintf(&c.buf, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", c.inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	c.buf.WriteString(name)
	c.buf.WriteByte(0)
	c.pad()
	c.buf.Write(data)
	c.pad()
}

func (c *cpio) pad() {
	for c.buf.Len()%4 != 0 {
		c.buf.WriteByte(0)
	}
}

// bytes ends the archive. Archives may follow one another in one file.
func (c *cpio) bytes() []byte {
	c.add("TRAILER!!!", 0, nil)
	return c.buf.Bytes()
}

// writeInitrd writes the guest's initial file system: the agent, the modules it needs to reach the disks, its configuration.
func writeInitrd(ctx context.Context, h *host.Host, path string, k kernel.Kernel, modules []string, conf wire.Config) error {
	agent, err := agentBinary(ctx, h)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	// The large part is the same for every guest of this kernel.
	key := host.Key("initrd", agent, k.Modules, strings.Join(modules, ","))
	dir, err := h.Entry(ctx, "initrd", key, func(ctx context.Context, dir string) error {
		return writeCommon(ctx, dir, agent, k, modules)
	})
	if err != nil {
		return err
	}
	preload, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		return err
	}
	conf.Preload = strings.Fields(string(preload))
	text, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	common, err := os.ReadFile(filepath.Join(dir, "initrd"))
	if err != nil {
		return err
	}
	var own cpio
	own.add("config.json", modeFile, text)
	return os.WriteFile(path, append(common, own.bytes()...), 0o644)
}

func writeCommon(ctx context.Context, dir, agent string, k kernel.Kernel, modules []string) error {
	var c cpio
	for _, d := range []string{"dev", "proc", "sys", "root", "modules"} {
		c.add(d, modeDir, nil)
	}
	b, err := os.ReadFile(agent)
	if err != nil {
		return err
	}
	c.add("init", modeExec, b)
	files, err := k.ModuleFiles(modules...)
	if err != nil {
		return err
	}
	var order []string
	for _, file := range files {
		b, name, err := plainModule(ctx, file)
		if err != nil {
			return err
		}
		c.add("modules/"+name, modeFile, b)
		order = append(order, "/modules/"+name)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "initrd"), c.bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, "order"), []byte(strings.Join(order, "\n")), 0o644),
	)
}

// plainModule returns a module's bytes, decompressed: the agent hands them to the kernel as they are.
func plainModule(ctx context.Context, file string) (data []byte, name string, err error) {
	name = filepath.Base(file)
	for suffix, program := range map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"} {
		if strings.HasSuffix(name, suffix) {
			out, err := host.Run(ctx, host.Command{Args: []string{program, "-dc", file}})
			return []byte(out), strings.TrimSuffix(name, suffix), err
		}
	}
	data, err = os.ReadFile(file)
	return data, name, err
}
