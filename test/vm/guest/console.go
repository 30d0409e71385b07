package guest

import (
	"io"
	"regexp"
	"strings"
	"sync"
)

// console collects what a guest's kernel and its setup say.
type console struct {
	mu      sync.Mutex
	log     io.Writer // the file in the guest's directory
	more    io.Writer // the caller's, or nil
	partial []byte
	lines   []string
	panic   string // the line that announced a panic
	onPanic chan struct{}
	trouble []string // other lines with which a kernel complains
}

func newConsole(log, more io.Writer) *console {
	return &console{log: log, more: more, onPanic: make(chan struct{})}
}

// keptLines is how much of the console is held in memory.
const keptLines = 400

var (
	panicLine = regexp.MustCompile(`Kernel panic - not syncing`)
	// I/O errors are not among them: tests make them on purpose.
	troubleLine = regexp.MustCompile(`\bBUG: |\bWARNING: |\bOops\b|general protection fault|blocked for more than \d+ seconds|` +
		`self-detected stall|detected stalls`)
)

// Write takes console output; a carriage return at a line's end is dropped.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range []io.Writer{c.log, c.more} {
		if w != nil {
			_, _ = w.Write(p) // A full disk must not stop the guest.
		}
	}
	c.partial = append(c.partial, p...)
	for {
		i := strings.IndexByte(string(c.partial), '\n')
		if i < 0 {
			return len(p), nil
		}
		c.line(strings.TrimRight(string(c.partial[:i]), "\r"))
		c.partial = c.partial[i+1:]
	}
}

func (c *console) line(s string) {
	if c.lines = append(c.lines, s); len(c.lines) > keptLines {
		c.lines = c.lines[len(c.lines)-keptLines:]
	}
	switch {
	case panicLine.MatchString(s):
		if c.panic == "" {
			c.panic = s
			close(c.onPanic)
		}
	case troubleLine.MatchString(s) && len(c.trouble) < 50:
		c.trouble = append(c.trouble, s)
	}
}

// tail returns the last lines.
func (c *console) tail(n int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := c.lines
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	text := strings.Join(lines, "\n")
	if len(c.partial) > 0 {
		text += "\n" + string(c.partial)
	}
	return text
}

// panicked returns the line that announced a panic, or "".
func (c *console) panicked() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.panic
}

// complaints returns the other lines with which the kernel complained.
func (c *console) complaints() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.trouble...)
}
