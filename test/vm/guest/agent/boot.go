package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/csi-ublk/csi-ublk/test/vm/guest/wire"
)

// boot takes the guest from the initial file system to one that is ready for commands.
func boot() error {
	if err := mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil && !errors.Is(err, syscall.EBUSY) {
		return err
	}
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return err
	}
	c, err := readConfig("/config.json")
	if err != nil {
		return err
	}
	for _, file := range c.Preload {
		if err := loadModule(file); err != nil {
			return err
		}
	}
	if err := enterRoot(c.Root); err != nil {
		return err
	}
	if err := mountSystem(); err != nil {
		return err
	}
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.WriteFile(configFile, b, 0o600); err != nil {
		return err
	}
	return setUp(c)
}

// enterRoot makes the device's file system the root.
func enterRoot(device string) error {
	if err := waitFor(device); err != nil {
		return err
	}
	if err := mount(device, "/root", "ext4", syscall.MS_NOATIME, ""); err != nil {
		return err
	}
	for _, m := range []string{"/dev", "/proc", "/sys"} {
		if err := mount(m, "/root"+m, "", syscall.MS_MOVE, ""); err != nil {
			return err
		}
	}
	if err := syscall.Chdir("/root"); err != nil {
		return err
	}
	if err := mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return err
	}
	if err := syscall.Chroot("."); err != nil {
		return err
	}
	return syscall.Chdir("/")
}

// waitFor waits for a device that its driver is still looking for.
func waitFor(device string) error {
	for range 1000 {
		if _, err := os.Stat(device); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("device %s does not appear", device)
}

// mountSystem mounts what every system has. The optional ones are those that a kernel may lack.
func mountSystem() error {
	for _, m := range []struct {
		target, fs, data string
		optional         bool
	}{
		{"/dev/pts", "devpts", "ptmxmode=0666", false},
		{"/dev/shm", "tmpfs", "", false},
		{"/dev/mqueue", "mqueue", "", true},
		{"/run", "tmpfs", "mode=755", false},
		{"/tmp", "tmpfs", "", false},
		{"/sys/fs/cgroup", "cgroup2", "", true},
		{"/sys/fs/bpf", "bpf", "", true},
		{"/sys/kernel/debug", "debugfs", "", true},
		{"/sys/kernel/tracing", "tracefs", "", true},
		{"/sys/kernel/config", "configfs", "", true},
	} {
		if err := mount(m.fs, m.target, m.fs, 0, m.data); err != nil && !m.optional {
			return err
		}
	}
	// Containers and CSI drivers rely on mounts that propagate, as systemd sets them up.
	if err := mount("", "/", "", syscall.MS_SHARED|syscall.MS_REC, ""); err != nil {
		return err
	}
	controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	for _, name := range strings.Fields(string(controllers)) {
		_ = os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+"+name), 0)
	}
	for path, target := range map[string]string{"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2"} {
		_ = os.Symlink(target, path)
	}
	return nil
}

// setUp does what the configuration asks for.
func setUp(c wire.Config) error {
	// A panic, also one by way of an oops, ends the machine at once: the rig sees it. Blocked tasks are logged after a minute.
	for path, value := range map[string]string{
		"kernel/panic": "-1", "kernel/panic_on_oops": "1", "kernel/sysrq": "1", "kernel/hung_task_timeout_secs": "60",
		"kernel/core_pattern": "core", "net/ipv4/ip_forward": "1", "vm/overcommit_memory": "1",
	} {
		_ = os.WriteFile("/proc/sys/"+path, []byte(value), 0)
	}
	if err := syscall.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	for _, s := range c.Shares {
		flags := uintptr(0)
		if s.RO {
			flags = syscall.MS_RDONLY
		}
		if err := mount(s.Source, s.Guest, s.FSType, flags, s.Data); err != nil {
			return err
		}
	}
	if err := makeStaticNodes(); err != nil {
		return err
	}
	if c.Data != "" {
		if err := os.Symlink(c.Data, "/dev/data"); err != nil {
			return err
		}
	}
	if c.CPUInfo {
		if err := addClockRate(); err != nil {
			return err
		}
	}
	for _, m := range c.Modules {
		if err := run("modprobe", m); err != nil {
			return err
		}
	}
	if err := run("ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	if c.Net != nil {
		if err := connect(*c.Net); err != nil {
			return err
		}
	}
	if c.Boot != "" {
		return run("bash", "-c", c.Boot)
	}
	return nil
}

// connect brings the network card up as eth0.
func connect(n wire.Net) error {
	steps := [][]string{}
	if n.Device != "eth0" {
		steps = append(steps, []string{"link", "set", n.Device, "name", "eth0"})
	}
	if n.MAC != "" {
		steps = append(steps, []string{"link", "set", "eth0", "address", n.MAC})
	}
	if n.Address != "" {
		steps = append(steps, []string{"address", "add", n.Address, "dev", "eth0"})
	}
	steps = append(steps, []string{"link", "set", "eth0", "up"})
	if n.Gateway != "" {
		steps = append(steps, []string{"route", "add", "default", "via", n.Gateway})
	}
	for _, s := range steps {
		if err := run("ip", s...); err != nil {
			return err
		}
	}
	return nil
}

// addClockRate lays a /proc/cpuinfo with a clock rate over the kernel's, which names none on User Mode Linux; the kubelet
// refuses to start without.
func addClockRate() error {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || strings.Contains(string(b), "cpu MHz") {
		return err
	}
	if err := os.WriteFile("/run/cpuinfo", append(b, "cpu MHz\t\t: 2000.000\n"...), 0o444); err != nil {
		return err
	}
	return mount("/run/cpuinfo", "/proc/cpuinfo", "", syscall.MS_BIND, "")
}

// run runs a setup command; what it says goes to the console.
func run(name string, args ...string) error {
	path, err := lookPath(name)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args...)
	cmd.Env = environment
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

// lookPath finds a program in the guest's PATH, which process 1 does not have in its own environment.
func lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path, _ := strings.CutPrefix(environment[0], "PATH=")
	for _, dir := range strings.Split(path, ":") {
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: not in %s", name, path)
}

// mount makes the directory and mounts there.
func mount(source, target, fs string, flags uintptr, data string) error {
	if fs != "" {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
	}
	if err := syscall.Mount(source, target, fs, flags, data); err != nil {
		return fmt.Errorf("mount %s %s on %s: %w", fs, source, target, err)
	}
	return nil
}

// sysFinitModule is the system call's number on x86-64, which package syscall does not name.
const sysFinitModule = 313

// loadModule loads a module file.
func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	params := []byte{0}
	_, _, errno := syscall.Syscall(sysFinitModule, f.Fd(), uintptr(unsafe.Pointer(&params[0])), 0)
	if errno != 0 && errno != syscall.EEXIST {
		return fmt.Errorf("load module %s: %w", file, errno)
	}
	return nil
}
