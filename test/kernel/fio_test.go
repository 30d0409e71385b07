//go:build ublk && linux

package kernel

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"
)

// A load is fio writing random blocks with checksums and reading them back.
type load struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

// startLoad runs until it is ended by wait; more are fio's arguments.
func startLoad(t *testing.T, file, size string, more ...string) *load {
	t.Helper()
	args := append([]string{
		"--name=load", "--filename=" + file, "--size=" + size, "--rw=randwrite", "--bs=4k", "--direct=1",
		"--ioengine=libaio", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=256", "--randrepeat=0",
		"--exitall_on_error=1",
	}, more...)
	l := &load{cmd: exec.Command("fio", args...), done: make(chan error, 1)}
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.out
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { l.done <- l.cmd.Wait() }()
	t.Cleanup(func() { l.cmd.Process.Kill() })
	return l
}

// over reports whether the load has ended, which it does early only on an error
// or a mismatch.
func (l *load) over() bool {
	select {
	case err := <-l.done:
		l.done <- err
		return true
	default:
		return false
	}
}

func (l *load) wait(t *testing.T) {
	t.Helper()
	if err := <-l.done; err != nil {
		t.Errorf("fio: %v\n%s", err, l.out.Bytes())
	}
}

// mountedDisk puts a file system on a disk and returns where it is mounted.
func (n *node) mountedDisk(disk, kind string) (dir string, unmount func()) {
	n.t.Helper()
	dir = filepath.Join(n.state, "mnt-"+filepath.Base(disk))
	mount(n.t, makeFS(n.t, kind, disk), dir, kind)
	return dir, func() { command(n.t, "umount", dir) }
}
