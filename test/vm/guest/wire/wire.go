// Package wire is what the rig and the agent in a guest say to each other over a serial line. It uses the standard library
// only, because the agent is compiled from sources that the rig carries inside itself.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Kind says what a frame is.
type Kind byte

// Frames of the rig.
const (
	Start    Kind = 'S' // Command: begin it under the frame's number
	Stdin    Kind = 'I' // bytes for the command; none: end of input
	Kill     Kind = 'K' // kill the command's process group
	Ping     Kind = 'P'
	Blocked  Kind = 'B' // have the kernel log its blocked tasks
	PowerOff Kind = 'Q'
)

// Frames of the agent.
const (
	Hello  Kind = 'H' // Greeting: the guest is set up
	Stdout Kind = 'O'
	Stderr Kind = 'E'
	Exit   Kind = 'X' // Result: the command's end, after all of its output
	Pong   Kind = 'p'
	Ack    Kind = 'A' // how many bytes the agent has received in all, 8 bytes
)

// Command is the payload of Start.
type Command struct {
	Args []string `json:"args"`
	Dir  string   `json:"dir,omitempty"`
	Env  []string `json:"env,omitempty"`
}

// Result is the payload of Exit.
type Result struct {
	Status int    `json:"status"`          // 128 + signal when a signal ended it
	Error  string `json:"error,omitempty"` // why it could not be run
}

// Greeting is the payload of Hello.
type Greeting struct {
	Release string  `json:"release"`
	Uptime  float64 `json:"uptime"` // seconds from the kernel's start
	Error   string  `json:"error,omitempty"`
}

// Config is the file /config.json of the initial file system: what the agent sets up.
type Config struct {
	Name    string   `json:"name"`
	Line    string   `json:"line"`    // the serial line's device, or the name of a virtio port with a leading "virtio:"
	Preload []string `json:"preload"` // module files of the initial file system, in order
	Root    string   `json:"root"`    // device of the root file system
	Data    string   `json:"data"`    // device of the data disk
	Shares  []Share  `json:"shares"`
	Modules []string `json:"modules"` // loaded with modprobe
	Net     *Net     `json:"net,omitempty"`
	Boot    string   `json:"boot,omitempty"`
	CPUInfo bool     `json:"cpuInfo"` // give /proc/cpuinfo the clock rate that it lacks
}

// Share is one mount of a host directory.
type Share struct {
	FSType string `json:"fsType"` // hostfs or 9p
	Source string `json:"source"`
	Data   string `json:"data"`
	Guest  string `json:"guest"`
	RO     bool   `json:"ro"`
}

// Net is the setup of the network card.
type Net struct {
	Device  string `json:"device"` // the kernel's name of the card, renamed to eth0
	MAC     string `json:"mac"`
	Address string `json:"address"`
	Gateway string `json:"gateway"`
}

// Frame is one message. ID tells commands apart.
type Frame struct {
	Kind Kind
	ID   uint32
	Data []byte
}

// MaxData bounds a frame's payload, so that noise on the line is seen as such.
const MaxData = 1 << 20

// start opens every frame.
const start = 0x01

// ErrNoise is the answer to bytes that are no frame.
var ErrNoise = errors.New("noise on the agent's line")

// Conn frames a line. Send may be called from several goroutines, Receive from one.
type Conn struct {
	r  io.Reader
	w  io.Writer
	mu sync.Mutex
}

// NewRigConn frames the rig's end of a line. The window must be closed with the line.
func NewRigConn(line io.ReadWriter) (*Conn, *Window) {
	w := NewWindow(line)
	return &Conn{r: line, w: w}, w
}

// NewAgentConn frames the agent's end of a line.
func NewAgentConn(line io.ReadWriter) *Conn {
	c := &Conn{w: line}
	c.r = NewAckingReader(line, c.Send)
	return c
}

// Send writes one frame. It blocks while the line is full.
func (c *Conn) Send(f Frame) error {
	buf := make([]byte, 10, 10+len(f.Data))
	buf[0], buf[1] = start, byte(f.Kind)
	binary.LittleEndian.PutUint32(buf[2:], f.ID)
	binary.LittleEndian.PutUint32(buf[6:], uint32(len(f.Data)))
	buf = append(buf, f.Data...)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.w.Write(buf)
	return err
}

// SendJSON writes one frame with v as its payload.
func (c *Conn) SendJSON(k Kind, id uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame %c: %w", k, err)
	}
	return c.Send(Frame{Kind: k, ID: id, Data: b})
}

// Receive reads the next frame.
func (c *Conn) Receive() (Frame, error) {
	var head [10]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return Frame{}, err
	}
	size := binary.LittleEndian.Uint32(head[6:])
	if head[0] != start || size > MaxData {
		return Frame{}, fmt.Errorf("%w: % x", ErrNoise, head)
	}
	f := Frame{Kind: Kind(head[1]), ID: binary.LittleEndian.Uint32(head[2:]), Data: make([]byte, size)}
	if _, err := io.ReadFull(c.r, f.Data); err != nil {
		return Frame{}, err
	}
	return f, nil
}
