package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/guest/wire"
)

// session is the talk with a guest's agent.
type session struct {
	conn  *wire.Conn
	room  *wire.Window
	hello chan wire.Greeting
	last  atomic.Int64 // UnixNano of the last frame from the agent

	posts sync.WaitGroup

	mu    sync.Mutex
	ended bool
	next  uint32
	runs  map[uint32]*run
}

// run is a command in the guest, seen from here.
type run struct {
	stdout, stderr io.Writer
	result         chan wire.Result
}

func newSession(line io.ReadWriter) *session {
	conn, room := wire.NewRigConn(line)
	return &session{conn: conn, room: room, hello: make(chan wire.Greeting, 1), runs: map[uint32]*run{}}
}

// receive hands frames to their commands until the line ends.
func (s *session) receive() error {
	for {
		f, err := s.conn.Receive()
		if err != nil {
			return err
		}
		s.last.Store(time.Now().UnixNano())
		switch f.Kind {
		case wire.Hello:
			var g wire.Greeting
			if err := json.Unmarshal(f.Data, &g); err != nil {
				return fmt.Errorf("decode greeting: %w", err)
			}
			select {
			case s.hello <- g:
			default:
			}
		case wire.Ack:
			s.room.Acked(f.Data)
		case wire.Stdout, wire.Stderr, wire.Exit:
			s.deliver(f)
		}
	}
}

func (s *session) deliver(f wire.Frame) {
	s.mu.Lock()
	r := s.runs[f.ID]
	s.mu.Unlock()
	if r == nil {
		return
	}
	switch f.Kind {
	case wire.Stdout:
		_, _ = r.stdout.Write(f.Data) // The command goes on when its reader is gone, as one with /dev/null would.
	case wire.Stderr:
		_, _ = r.stderr.Write(f.Data)
	case wire.Exit:
		var result wire.Result
		if err := json.Unmarshal(f.Data, &result); err != nil {
			result = wire.Result{Status: 126, Error: err.Error()}
		}
		r.result <- result
	}
}

// ping asks the agent for a sign of life, every interval until stop. silent is called when nothing was heard for limit.
func (s *session) ping(interval, limit time.Duration, stop <-chan struct{}, silent func()) {
	s.last.Store(time.Now().UnixNano())
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		if time.Since(time.Unix(0, s.last.Load())) > limit {
			silent()
			return
		}
		s.post(wire.Frame{Kind: wire.Ping})
	}
}

// post sends without waiting for the line to have room; that the line has ended shows in receive. The goroutine ends with the
// line at the latest.
func (s *session) post(f wire.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.posts.Go(func() { _ = s.conn.Send(f) })
	}
}

// end makes all that wait for the line give up, and waits for them.
func (s *session) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.room.Close()
	s.posts.Wait()
}

// begin starts a command and feeds it its input. It does not wait for the line.
func (s *session) begin(c Cmd) (uint32, *run) {
	r := &run{stdout: c.Stdout, stderr: c.Stderr, result: make(chan wire.Result, 1)}
	if r.stdout == nil {
		r.stdout = io.Discard
	}
	if r.stderr == nil {
		r.stderr = io.Discard
	}
	s.mu.Lock()
	s.next++
	id := s.next
	s.runs[id] = r
	s.mu.Unlock()
	// Not waited for: a read of the caller's input can't be ended from here.
	go func() {
		if s.conn.SendJSON(wire.Start, id, wire.Command{Args: c.Args, Dir: c.Dir, Env: c.Env}) == nil {
			s.feed(id, c.Stdin)
		}
	}()
	return id, r
}

func (s *session) forget(id uint32) {
	s.mu.Lock()
	delete(s.runs, id)
	s.mu.Unlock()
}

// feed sends a command's input and its end.
func (s *session) feed(id uint32, in io.Reader) {
	buf := make([]byte, wire.WindowBytes/2)
	for in != nil {
		n, err := in.Read(buf)
		if n > 0 && s.conn.Send(wire.Frame{Kind: wire.Stdin, ID: id, Data: buf[:n]}) != nil {
			return
		}
		if err != nil {
			break
		}
	}
	_ = s.conn.Send(wire.Frame{Kind: wire.Stdin, ID: id})
}

// Run runs a command in the guest and waits for its end; several may run at once. It answers the exit status (128 + signal
// when a signal ended it); the error is for commands that could not be run, and for a guest that died meanwhile. When ctx
// ends, the command's process group is killed.
func (g *Guest) Run(ctx context.Context, c Cmd) (status int, err error) {
	if len(c.Args) == 0 {
		return -1, errors.New("run in guest: no command")
	}
	id, r := g.session.begin(c)
	defer g.session.forget(id)
	select {
	case result := <-r.result:
		if result.Error != "" {
			return result.Status, fmt.Errorf("guest %s: run: %s", g.spec.Name, result.Error)
		}
		return result.Status, nil
	case <-g.done:
		return -1, g.endError()
	case <-ctx.Done():
	}
	g.session.post(wire.Frame{Kind: wire.Kill, ID: id})
	select {
	case <-r.result:
	case <-g.done:
	case <-time.After(2 * time.Second): // A process in a system call that does not return can't be waited for.
	}
	return -1, fmt.Errorf("guest %s: run %s: %w", g.spec.Name, c.Args[0], ctx.Err())
}
