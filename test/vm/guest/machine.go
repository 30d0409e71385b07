package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/guest/wire"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// machine is what differs between User Mode Linux and QEMU. The process it describes writes the console to its standard output
// and has the agent's line as descriptor 3.
type machine interface {
	// prepare makes the disks in dir that are not there yet.
	prepare(ctx context.Context, s Spec, dir string) error
	// config fills in how the guest names its devices and shares.
	config(s Spec, c *wire.Config)
	// preload lists the modules that the guest needs to find its root.
	preload(s Spec) []string
	// command is the process; initrd is the initial file system, args the common kernel arguments.
	command(s Spec, dir, initrd string, args []string) (argv, env []string)
}

func machineOf(a Accel) (machine, error) {
	switch a {
	case AccelUML:
		return uml{}, nil
	case AccelKVM, AccelTCG:
		return qemu{kvm: a == AccelKVM}, nil
	}
	return nil, fmt.Errorf("accelerator %q: want uml, kvm or tcg", a)
}

// dataDisk makes the sparse data disk if it is not there.
func dataDisk(s Spec, dir string) error {
	path := filepath.Join(dir, "data")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(s.DataDiskBytes), f.Close())
}

// uml runs the kernel as a process.
type uml struct{}

func (uml) prepare(_ context.Context, s Spec, dir string) error {
	// A killed kernel leaves the directory of its control socket behind and then takes its name for used.
	if err := os.RemoveAll(filepath.Join(dir, "uml")); err != nil {
		return err
	}
	return dataDisk(s, dir) // The kernel makes the copy-on-write file itself.
}

func (uml) config(s Spec, c *wire.Config) {
	c.Line, c.Root, c.Data, c.CPUInfo = "/dev/ttyS0", "/dev/ubda", "/dev/ubdb", true
	for _, sh := range s.Shares {
		c.Shares = append(c.Shares, wire.Share{FSType: "hostfs", Source: "none", Data: sh.Host, Guest: sh.Guest, RO: sh.ReadOnly})
	}
	if c.Net != nil {
		c.Net.Device = "vec0"
	}
}

func (uml) preload(Spec) []string { return nil }

func (uml) command(s Spec, dir, initrd string, args []string) (argv, env []string) {
	argv = []string{
		s.Kernel.Image, "umid=guest", "uml_dir=" + filepath.Join(dir, "uml"), "mem=" + strconv.Itoa(s.MemoryMiB) + "M",
		// The mode without ptrace: system calls cost a third.
		"seccomp=on",
		"ubd0=" + filepath.Join(dir, "root.cow") + "," + s.Root, "ubd1=" + filepath.Join(dir, "data"),
		"initrd=" + initrd, "con=null", "con0=null,fd:1", "ssl=null", "ssl0=fd:3",
	}
	if s.Net != nil {
		// A ring deeper than 64 draws a warning of the kernel's.
		argv = append(argv, "vec0:transport=tap,ifname="+s.Net.Tap+",depth=64,gro=1")
	}
	return append(argv, args...), []string{"TMPDIR=" + memoryDir(s, dir)}
}

// memoryDir is where the guest's memory file lives: in shared memory if it fits there, for then it is never written back.
func memoryDir(s Spec, dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err == nil && st.Type == unix.TMPFS_MAGIC && int64(st.Bavail)*st.Bsize > int64(s.MemoryMiB)<<20 {
		return "/dev/shm"
	}
	return dir
}

// qemu runs a stock kernel on an emulated or virtualized PC.
type qemu struct{ kvm bool }

func (qemu) prepare(ctx context.Context, s Spec, dir string) error {
	overlay := filepath.Join(dir, "root.qcow2")
	if _, err := os.Stat(overlay); errors.Is(err, os.ErrNotExist) {
		create := host.Command{Args: []string{"qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", s.Root, overlay}}
		if _, err := host.Run(ctx, create); err != nil {
			return err
		}
	}
	return dataDisk(s, dir)
}

func (qemu) config(s Spec, c *wire.Config) {
	c.Line, c.Root, c.Data = "virtio:agent", "/dev/vda", "/dev/vdb"
	for i, sh := range s.Shares {
		c.Shares = append(c.Shares, wire.Share{
			FSType: "9p", Source: shareTag(i), Data: "trans=virtio,version=9p2000.L,msize=262144,cache=mmap", Guest: sh.Guest, RO: sh.ReadOnly,
		})
	}
	if c.Net != nil {
		c.Net.Device = "eth0"
	}
}

func shareTag(i int) string { return "share" + strconv.Itoa(i) }

func (qemu) preload(s Spec) []string {
	// The checksum that ext4 asks for by name is a module of its own in older kernels.
	names := []string{"virtio_pci", "virtio_blk", "virtio_console", "9pnet_virtio", "9p", "?crc32c_generic", "ext4"}
	if s.Net != nil {
		names = append(names, "virtio_net")
	}
	return names
}

func (q qemu) command(s Spec, dir, initrd string, args []string) (argv, env []string) {
	accel, cpu, cpus := "tcg", "max", "1"
	if q.kvm {
		accel, cpu, cpus = "kvm", "host", "2"
	}
	kernelArgs := append([]string{"console=ttyS0"}, args...)
	argv = []string{
		"qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "pc,accel=" + accel, "-cpu", cpu, "-smp", cpus, "-m", strconv.Itoa(s.MemoryMiB) + "M",
		"-kernel", s.Kernel.Image, "-initrd", initrd, "-append", strings.Join(kernelArgs, " "),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,fd=3", "-device", "virtserialport,chardev=agent,name=agent",
		// User Mode Linux locks the image that it shares with us, which nobody writes to.
		"-drive", "if=none,id=root,format=qcow2,discard=unmap,backing.file.locking=off,file=" + filepath.Join(dir, "root.qcow2"), "-device", "virtio-blk-pci,drive=root",
		"-drive", "if=none,id=data,format=raw,discard=unmap,file=" + filepath.Join(dir, "data"), "-device", "virtio-blk-pci,drive=data",
	}
	for i, sh := range s.Shares {
		fsdev := "local,security_model=none,multidevs=remap,id=" + shareTag(i) + ",path=" + sh.Host
		if sh.ReadOnly {
			fsdev += ",readonly=on"
		}
		argv = append(argv, "-fsdev", fsdev, "-device", "virtio-9p-pci,fsdev="+shareTag(i)+",mount_tag="+shareTag(i))
	}
	if s.Net != nil {
		argv = append(argv, "-netdev", "tap,id=net,script=no,downscript=no,ifname="+s.Net.Tap, "-device", "virtio-net-pci,netdev=net,mac="+s.Net.MAC)
	}
	return argv, nil
}
