package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFramesComeBack(t *testing.T) {
	var line bytes.Buffer
	c := &Conn{r: &line, w: &line}
	sent := []Frame{{Ping, 0, []byte{}}, {Stdout, 7, []byte("text\x00\x01")}, {Exit, 1<<32 - 1, bytes.Repeat([]byte{1}, 70000)}}
	for _, f := range sent {
		if err := c.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range sent {
		got, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := c.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("Receive at the end = %v, want EOF", err)
	}
}

func FuzzReceive(f *testing.F) {
	var line bytes.Buffer
	_ = (&Conn{w: &line}).Send(Frame{Hello, 1, []byte("{}")})
	f.Add(line.Bytes())
	f.Add([]byte("login: \r\n\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Conn{r: bytes.NewReader(b)}
		for {
			frame, err := c.Receive()
			if err != nil {
				return
			}
			if len(frame.Data) > MaxData {
				t.Fatal("a frame beyond its bound")
			}
		}
	})
}

// pipes joins two ends; each direction is a pipe that does not buffer.
type pipes struct {
	io.Reader
	io.Writer
}

func TestWindowHoldsBackAndLetsThrough(t *testing.T) {
	toAgent, fromRig := io.Pipe()
	toRig, fromAgent := io.Pipe()
	rig, room := NewRigConn(pipes{toRig, fromRig})
	agent := NewAgentConn(pipes{toAgent, fromAgent})
	go func() {
		for {
			f, err := rig.Receive()
			if err != nil {
				return
			}
			room.Acked(f.Data)
		}
	}()
	want := bytes.Repeat([]byte("0123456789"), 10*WindowBytes)
	go func() { _ = rig.Send(Frame{Kind: Stdin, Data: want}) }()
	got, err := agent.Receive()
	if err != nil || !bytes.Equal(got.Data, want) {
		t.Errorf("%d bytes came through, want %d: %v", len(got.Data), len(want), err)
	}
	fromAgent.Close()
}

func TestClosedWindowEndsAWait(t *testing.T) {
	var line bytes.Buffer
	w := NewWindow(&line)
	failed := make(chan error)
	go func() {
		_, err := w.Write(make([]byte, WindowBytes+1))
		failed <- err
	}()
	w.Close()
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("Write = %v, want ErrClosed", err)
	}
	if line.Len() > WindowBytes {
		t.Errorf("%d bytes on the line without an acknowledgment", line.Len())
	}
}
