//go:build ublk && linux

package server

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A slowDisk is a network block device served by the test, which can keep one
// write for as long as it likes while all others go through: what a real disk's
// queue or a retrying link may do, and dm-delay does not, which keeps the order.
type slowDisk struct {
	path string
	file *os.File // the medium

	mu      sync.Mutex
	pattern []byte        // the write to keep begins with it; nil means none
	kept    chan struct{} // closed when it is there
	release chan struct{} // closing it lets it go
	landed  chan struct{} // closed when it is on the medium
}

// Requests of Documentation/admin-guide/blockdev/nbd.rst and linux/nbd.h.
const (
	nbdSetSock       = 0xab00
	nbdSetBlockSize  = 0xab01
	nbdDoIt          = 0xab03
	nbdClearSock     = 0xab04
	nbdSetSizeBlocks = 0xab07
	nbdDisconnect    = 0xab08
	nbdSetFlags      = 0xab0a

	nbdRequestMagic = 0x25609513
	nbdReplyMagic   = 0x67446698

	nbdRead, nbdWrite, nbdClose = 0, 1, 2
)

func newSlowDisk(t *testing.T, size int64) *slowDisk {
	t.Helper()
	command(t, "modprobe", "nbd")
	medium, err := os.CreateTemp("/var/tmp", "medium-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { medium.Close(); os.Remove(medium.Name()) })
	if err := medium.Truncate(size); err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := &slowDisk{path: "/dev/nbd0", file: medium}
	// Read-only: a disk that somebody may write to can't be mounted.
	dev, err := os.OpenFile(d.path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ request, arg uintptr }{
		{nbdSetBlockSize, 4096}, {nbdSetSizeBlocks, uintptr(size / 4096)}, {nbdSetFlags, 1}, {nbdSetSock, uintptr(pair[0])},
	} {
		if err := ioctl(dev, c.request, c.arg); err != nil {
			t.Fatalf("set up %s: request %#x: %v", d.path, c.request, err)
		}
	}
	server := os.NewFile(uintptr(pair[1]), "nbd")
	var all sync.WaitGroup
	all.Go(func() { d.serve(server) })
	all.Go(func() { _ = ioctl(dev, nbdDoIt, 0) })
	waitFor(t, "the disk to be connected", func() bool {
		_, err := os.Stat("/sys/block/nbd0/pid")
		return err == nil
	})
	t.Cleanup(func() {
		_ = ioctl(dev, nbdDisconnect, 0)
		server.Close()
		all.Wait()
		_ = ioctl(dev, nbdClearSock, 0)
		dev.Close()
		unix.Close(pair[0])
	})
	return d
}

func ioctl(f *os.File, request, arg uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, arg); errno != 0 {
		return errno
	}
	return nil
}

// keep makes the next write that begins with the pattern wait for release.
func (d *slowDisk) keep(pattern []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pattern = pattern
	d.kept, d.release, d.landed = make(chan struct{}), make(chan struct{}), make(chan struct{})
}

func (d *slowDisk) serve(s *os.File) {
	var replies sync.Mutex
	answer := func(cookie, data []byte, err error) {
		head := binary.BigEndian.AppendUint32(nil, nbdReplyMagic)
		code := uint32(0)
		if err != nil {
			code, data = uint32(unix.EIO), nil
		}
		head = append(binary.BigEndian.AppendUint32(head, code), cookie...)
		replies.Lock()
		defer replies.Unlock()
		_, _ = s.Write(append(head, data...))
	}
	for {
		var head [28]byte
		if _, err := io.ReadFull(s, head[:]); err != nil || binary.BigEndian.Uint32(head[:]) != nbdRequestMagic {
			return
		}
		op := binary.BigEndian.Uint32(head[4:]) & 0xffff
		cookie := bytes.Clone(head[8:16])
		off, n := int64(binary.BigEndian.Uint64(head[16:])), binary.BigEndian.Uint32(head[24:])
		data := make([]byte, n)
		switch op {
		case nbdRead:
			_, err := d.file.ReadAt(data, off)
			answer(cookie, data, err)
		case nbdWrite:
			if _, err := io.ReadFull(s, data); err != nil {
				return
			}
			d.mu.Lock()
			keep := d.pattern != nil && bytes.HasPrefix(data, d.pattern)
			if keep {
				d.pattern = nil
				close(d.kept)
			}
			release, landed := d.release, d.landed
			d.mu.Unlock()
			write := func() {
				_, err := d.file.WriteAt(data, off)
				answer(cookie, nil, err)
			}
			if keep {
				go func() {
					<-release
					write()
					close(landed)
				}()
			} else {
				write()
			}
		case nbdClose:
			return
		}
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strconv.Quote(args[len(args)-1]), err, out)
	}
}
