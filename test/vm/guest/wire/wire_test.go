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
	c := NewConn(&line)
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
	_ = NewConn(&line).Send(Frame{Hello, 1, []byte("{}")})
	f.Add(line.Bytes())
	f.Add([]byte("login: \r\n\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := NewConn(bytes.NewBuffer(b))
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
