// Package command runs the programs that make, check and grow file systems.
package command

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// Run executes a program and waits for it; ctx kills it, and so does the end of this
// process, after which another one may work on the same device. The error carries the
// program's last words, in English whatever the locale.
func Run(ctx context.Context, name string, args ...string) error {
	_, err := Output(ctx, name, args...)
	return err
}

// Output is Run that also returns what the program said, on both of its outputs.
func Output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// The kernel means the thread that started the program: it must live as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if err == nil {
		return out.String(), nil
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: %w", name, ctx.Err())
	}
	said := strings.Join(strings.Fields(out.String()), " ")
	if len(said) > 400 {
		said = "..." + said[len(said)-400:]
	}
	return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said)
}
