package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

// WindowBytes bounds what is on its way to the agent. A tty of the guest holds 4096 bytes for its reader; beyond that it stops
// the line, and on User Mode Linux the line has been seen not to start again.
const WindowBytes = 2048

// ackEvery is how many received bytes the agent acknowledges at once.
const ackEvery = WindowBytes / 4

// Window is the rig's writing side of the line: it holds back what the agent could not take yet.
type Window struct {
	w           io.Writer
	mu          sync.Mutex
	changed     *sync.Cond
	sent, acked uint64
	closed      bool
}

// ErrClosed is the answer of a Window after Close.
var ErrClosed = errors.New("the agent's line is closed")

// NewWindow writes to w.
func NewWindow(w io.Writer) *Window {
	win := &Window{w: w}
	win.changed = sync.NewCond(&win.mu)
	return win
}

// Write blocks until everything is on the line; Close ends the wait.
func (w *Window) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := w.reserve(len(p) - done)
		if err != nil {
			return done, err
		}
		n, err = w.w.Write(p[done : done+n])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// reserve waits for room and takes up to want bytes of it.
func (w *Window) reserve(want int) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.closed && w.sent-w.acked >= WindowBytes {
		w.changed.Wait()
	}
	if w.closed {
		return 0, ErrClosed
	}
	n := min(want, WindowBytes-int(w.sent-w.acked))
	w.sent += uint64(n)
	return n, nil
}

// Acked takes the payload of an Ack frame.
func (w *Window) Acked(data []byte) {
	if len(data) != 8 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked = min(binary.LittleEndian.Uint64(data), w.sent)
	w.changed.Broadcast()
}

// Close makes all writes fail, also those that wait.
func (w *Window) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.changed.Broadcast()
}

// AckingReader is the agent's reading side of the line: it acknowledges what it has read.
type AckingReader struct {
	r             io.Reader
	send          func(Frame) error
	read, settled uint64
}

// NewAckingReader reads from r and sends Ack frames with send.
func NewAckingReader(r io.Reader, send func(Frame) error) *AckingReader {
	return &AckingReader{r: r, send: send}
}

func (a *AckingReader) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	a.read += uint64(n)
	if a.read-a.settled >= ackEvery {
		a.settled = a.read
		if err := a.send(Frame{Kind: Ack, Data: binary.LittleEndian.AppendUint64(nil, a.read)}); err != nil {
			return n, err
		}
	}
	return n, err
}
