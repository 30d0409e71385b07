// Package blockdev looks at block devices: what is on one, how large it is, who
// uses it, and loop devices over files. Nothing here writes to a device.
package blockdev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Content is what Probe found on a device. The zero value is no answer: a device
// is blank only if Blank says so.
type Content struct {
	// Blank: both ends of the device read as zeros, or the start does and no
	// signature is known.
	Blank bool
	// Type is the file system or, with Table, the partition table; "" when the
	// data is of no known kind.
	Type  string
	Table bool
	Label string
	UUID  string
}

// String says what was found, for a message to the person who owns the device.
func (c Content) String() string {
	switch {
	case c.Blank:
		return "nothing"
	case c.Type == "":
		return "data of an unknown kind"
	case c.Table:
		return "a partition table (" + c.Type + ")"
	case c.Label != "":
		return fmt.Sprintf("%s, labelled %q", c.Type, c.Label)
	}
	return c.Type
}

const (
	// Every file system, RAID and volume manager that libblkid knows has its
	// primary signature in the first MiB and one page, or, like old RAID
	// metadata and the GPT backup, in the last MiB.
	headBytes = 1<<20 + 64<<10
	tailBytes = 1 << 20
)

// Probe says what is on the device, or the image file, at path. It never guesses:
// a device that can't be read is an error, never blank. (blkid alone answers "no
// signature" for a device that it can't read, which has cost people their data.)
// A blank device costs no process.
func Probe(ctx context.Context, path string) (Content, error) {
	head, tail, err := readEnds(path)
	if err != nil {
		return Content{}, fmt.Errorf("probe %s: %w", path, err)
	}
	if isZero(head) && isZero(tail) {
		return Content{Blank: true}, nil
	}
	c, err := blkid(ctx, path)
	if err != nil {
		return Content{}, fmt.Errorf("probe %s: %w", path, err)
	}
	// Without a signature, a start of zeros is a wiped disk with remains at its
	// end; anything else at the start is somebody's raw data.
	c.Blank = c.Type == "" && !c.ambivalent() && isZero(head)
	return c, nil
}

func (c Content) ambivalent() bool { return c.Label == ambivalentLabel }

// ambivalentLabel stands in for a label when blkid found more than one signature.
const ambivalentLabel = "more than one signature"

func readEnds(path string) (head, tail []byte, err error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, nil, err
	}
	if size == 0 {
		return nil, nil, fmt.Errorf("the device has no size: %w", unix.ENODATA)
	}
	read := func(offset, n int64) ([]byte, error) {
		b := make([]byte, n)
		if _, err := f.ReadAt(b, offset); err != nil {
			return nil, err
		}
		return b, nil
	}
	if size <= headBytes+tailBytes {
		head, err = read(0, size)
		return head, nil, err
	}
	if head, err = read(0, headBytes); err != nil {
		return nil, nil, err
	}
	tail, err = read(size-tailBytes, tailBytes)
	return head, tail, err
}

var zeros [64 << 10]byte

func isZero(b []byte) bool {
	for len(b) > len(zeros) {
		if !bytes.Equal(b[:len(zeros)], zeros[:]) {
			return false
		}
		b = b[len(zeros):]
	}
	return bytes.Equal(b, zeros[:len(b)])
}

// Exit codes of blkid(8) in low-level probing.
const (
	blkidNothing    = 2
	blkidAmbivalent = 8
)

func blkid(ctx context.Context, path string) (Content, error) {
	cmd := exec.CommandContext(ctx, "blkid", "--probe", "--output", "export", path)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return Content{}, ctx.Err()
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return parseExport(string(out)), nil
	case errors.As(err, &exit) && exit.ExitCode() == blkidNothing:
		return Content{}, nil
	case errors.As(err, &exit) && exit.ExitCode() == blkidAmbivalent:
		return Content{Label: ambivalentLabel}, nil
	}
	return Content{}, fmt.Errorf("blkid: %w: %s", err, strings.TrimSpace(stderr.String()))
}

// parseExport reads blkid's KEY=value lines.
func parseExport(out string) Content {
	var c Content
	var table string
	for line := range strings.Lines(out) {
		key, value, ok := strings.Cut(strings.TrimRight(line, "\n"), "=")
		if !ok {
			continue
		}
		switch key {
		case "TYPE":
			c.Type = value
		case "PTTYPE":
			table = value
		case "LABEL":
			c.Label = unescape(value)
		case "UUID":
			c.UUID = value
		}
	}
	if c.Type == "" && table != "" {
		c.Type, c.Table = table, true
	}
	return c
}

// unescape undoes blkid's backslashes before characters special to a shell.
func unescape(s string) string { return strings.ReplaceAll(s, `\`, "") }
