package guest

import (
	"context"
	"errors"
	"time"
)

// Guest is a running virtual machine. All methods may be called from several goroutines.
type Guest struct{}

// Accel is a way of running guests.
type Accel string

const (
	AccelUML Accel = "uml" // User Mode Linux: one CPU, native speed of computation
	AccelKVM Accel = "kvm" // QEMU with hardware virtualization
	AccelTCG Accel = "tcg" // QEMU with emulation: slow
)

// ErrPanic is the end of a guest whose kernel gave up, ErrHung that of one that stopped answering, and ErrKilled that of one
// that Kill or the end of its context stopped.
var (
	ErrPanic  = errors.New("guest kernel panic")
	ErrHung   = errors.New("guest hangs")
	ErrKilled = errors.New("guest killed")
)

// Start boots a guest and returns when it takes commands (or with an error that carries the console's tail). The guest dies
// with ctx, with Close, and with this process, however that ends.
func Start(ctx context.Context, s Spec) (*Guest, error) { return nil, errors.ErrUnsupported }

// Run runs a command in the guest and waits for its end; several may run at once. It answers the exit status (128 + signal
// when a signal ended it); the error is for commands that could not be run, and for a guest that died meanwhile. When ctx
// ends, the command's process group is killed.
func (g *Guest) Run(ctx context.Context, c Cmd) (status int, err error) {
	return -1, errors.ErrUnsupported
}

// Shell runs a script with bash and returns its output, stdout and stderr together. A status other than 0 is an error that
// carries the output.
func (g *Guest) Shell(ctx context.Context, script string) (string, error) {
	return "", errors.ErrUnsupported
}

// Dir is where the guest's disks and console log are.
func (g *Guest) Dir() string { return "" }

// Console returns the last lines of the console.
func (g *Guest) Console(lines int) string { return "" }

// Done is closed when the guest has ended; Err then says why (nil after PowerOff).
func (g *Guest) Done() <-chan struct{} { return nil }

// Err says why the guest ended, nil while it runs.
func (g *Guest) Err() error { return nil }

// Kill ends the guest like a power cut and waits for its end: what it did not write to its disks is lost. Start with the same
// Dir boots it again.
func (g *Guest) Kill() error { return errors.ErrUnsupported }

// Pause stops the guest's CPU, as a hang of the whole machine would; Resume lets it go on.
func (g *Guest) Pause() error  { return errors.ErrUnsupported }
func (g *Guest) Resume() error { return errors.ErrUnsupported }

// PowerOff syncs the disks, unmounts the shares and ends the guest; after the time limit it is killed.
func (g *Guest) PowerOff(limit time.Duration) error { return errors.ErrUnsupported }

// Close kills the guest if it still runs and removes what Start made (not a Dir that the caller gave). It is idempotent.
func (g *Guest) Close() error { return errors.ErrUnsupported }
