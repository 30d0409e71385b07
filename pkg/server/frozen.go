package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

// The node plugin freezes a file system for a cut, and thaws it. Should it die in
// between, every writer would wait for the next plugin. So it leaves a descriptor here
// first. The kernel ends the connection when the plugin's last thread is gone, also one
// that is still freezing: no freeze comes after the thaw.

// serveFrozen takes descriptors until l is closed.
func (s *Server) serveFrozen(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		s.background.Go(func() {
			if err := s.guardFrozen(c); err != nil {
				s.log.Error("guard of a frozen file system", "error", err)
			}
		})
	}
}

func (s *Server) guardFrozen(c net.Conn) error {
	defer c.Close()
	if _, _, err := (rootOnly{}).ServerHandshake(c); err != nil {
		return err
	}
	// The next server has no descriptor; then the next plugin thaws, by its mark.
	defer context.AfterFunc(s.stopping, func() { c.Close() })()
	if err := c.SetDeadline(time.Now().Add(serverv1.FrozenAtMost)); err != nil {
		return err
	}
	dir, err := serverv1.ReceiveFrozen(c.(*net.UnixConn))
	if err != nil {
		return err
	}
	defer dir.Close()
	n, err := c.Read(make([]byte, 1))
	if n == 1 || s.stopping.Err() != nil {
		return nil
	}
	s.log.Warn("whoever froze a file system has not thawed it, thawing it here", "reason", err)
	return s.thawByChild(dir)
}

// thawByChild has another process thaw, and closes dir. It may write to the file system, which waits for
// the device; a server that did so itself could not even be killed while it waits for
// its own worker.
func (s *Server) thawByChild(dir *os.File) error {
	argv := s.options.ThawCommand
	if argv == nil {
		argv = []string{"/proc/self/exe", "thaw"}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.ExtraFiles = []*os.File{dir}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the process that thaws: %w", err)
	}
	// The file system can't be unmounted as long as anybody has it.
	dir.Close()
	ended := make(chan error, 1)
	// It ends with the child, which may be after the server has given up waiting.
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("thaw: %w", err)
		}
		return nil
	case <-s.stopping.Done():
		return nil
	}
}

// ThawFD is the descriptor that the process which thaws has from its parent.
const ThawFD = 3

// Thaw thaws the file system of a directory, FITHAW of linux/fs.h. That it is not frozen
// is no error.
func Thaw(dir *os.File) error {
	const fiThaw = 0xc0045878
	if err := unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("thaw: %w", err)
	}
	return nil
}
