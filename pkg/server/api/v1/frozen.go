package serverv1

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// What the gRPC API can't carry: a descriptor of a file system that is about to be
// frozen, which the server thaws if whoever froze it dies. It goes over a socket of its
// own, a connection for each: one byte with the descriptor, a byte in answer, and a byte
// when it is thawed and the server may forget it. A connection that ends without that,
// or after FrozenAtMost, has the server thaw.

// FrozenAtMost is how long the server waits for the last byte.
const FrozenAtMost = 15 * time.Second

// FrozenSocket is beside the API's socket.
func FrozenSocket(api string) string { return filepath.Join(filepath.Dir(api), "frozen.sock") }

// SendFrozen hands over a descriptor of a directory of the file system, and returns when
// the server has it.
func SendFrozen(c *net.UnixConn, dir *os.File) error {
	// Not by WriteMsgUnix alone: dir.Fd would make the directory's descriptor blocking,
	// which it is.
	_, _, err := c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(dir.Fd())), nil)
	if err != nil {
		return fmt.Errorf("send descriptor: %w", err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("wait for the server to have the descriptor: %w", err)
	}
	return nil
}

// ReceiveFrozen is the server's side of SendFrozen. The caller closes the file.
func ReceiveFrozen(c *net.UnixConn) (*os.File, error) {
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, fmt.Errorf("receive descriptor: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(err, fmt.Errorf("receive descriptor: %d control messages, want 1", len(messages)))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, fmt.Errorf("receive descriptor: %w", err)
	}
	f := os.NewFile(uintptr(fds[0]), "a frozen file system")
	if _, err := c.Write(b); err != nil {
		return nil, errors.Join(fmt.Errorf("acknowledge descriptor: %w", err), f.Close())
	}
	return f, nil
}
