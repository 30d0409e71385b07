package client

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

// guardPatience bounds the wait for a server that may not answer.
const guardPatience = 2 * time.Second

// GuardFrozen is called before a file system is frozen, with a directory of it: should
// this process die, the server thaws it, and it does so too if release is not called in
// time (serverv1.FrozenAtMost). release is to be called when it is thawed. An error means
// that nobody guards it, as with a server of a version that can't.
func (c *Client) GuardFrozen(ctx context.Context, dir *os.File) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, guardPatience)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", serverv1.FrozenSocket(c.socket))
	if err != nil {
		return nil, fmt.Errorf("have the device server guard %s: %w", dir.Name(), err)
	}
	conn := raw.(*net.UnixConn)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err = serverv1.SendFrozen(conn, dir)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("have the device server guard %s: %w", dir.Name(), err)
	}
	return func() {
		// A server that is gone needs no word.
		_, _ = conn.Write([]byte{0})
		conn.Close()
	}, nil
}
