package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/cluster"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// screen runs commands and shows them with their real output, as someone at a terminal would see them.
type screen struct {
	out     io.Writer
	cluster *cluster.Kept
	step    int
}

// chapter begins a step of the story.
func (s *screen) chapter(title string) {
	s.step++
	fmt.Fprintf(s.out, "\n== %d. %s\n", s.step, title)
}

// say explains what comes next, or what was just seen.
func (s *screen) say(format string, args ...any) {
	fmt.Fprintf(s.out, "   %s\n", fmt.Sprintf(format, args...))
}

// kubectl shows and runs kubectl, and returns its output.
func (s *screen) kubectl(ctx context.Context, args string) (string, error) {
	fmt.Fprintf(s.out, "   $ kubectl %s\n", args)
	out, err := s.quietly(ctx, nil, args)
	s.show(out)
	if err != nil {
		return out, fmt.Errorf("kubectl %s: %w", args, err)
	}
	return out, nil
}

// quietly runs kubectl without showing it.
func (s *screen) quietly(ctx context.Context, stdin io.Reader, args string) (string, error) {
	var out bytes.Buffer
	err := s.cluster.Inside.Run(ctx, stdin, &out, &out, append([]string{"kubectl"}, words(args)...)...)
	if err != nil {
		err = fmt.Errorf("%w%s", err, host.Indent(host.Tail(out.String(), 5)))
	}
	return out.String(), err
}

// node shows and runs a script on a node, and returns its output.
func (s *screen) node(ctx context.Context, n int, script string) (string, error) {
	fmt.Fprintf(s.out, "   node%d# %s\n", n, script)
	out, err := s.cluster.Shell(ctx, n, script)
	s.show(out)
	return out, err
}

func (s *screen) show(out string) {
	for _, line := range strings.Split(strings.TrimRight(out, "\n"), "\n") {
		if line != "" {
			fmt.Fprintf(s.out, "     %s\n", line)
		}
	}
}

// until asks again until the answer is no error, limit at the most.
func (s *screen) until(ctx context.Context, limit time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// words splits a command line at blanks; a part in single quotes is one word.
func words(line string) []string {
	var out []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}
