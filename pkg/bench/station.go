package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// A station is a device server of its own: a child process with a state directory
// in which one pool holds sparse files.
type station struct {
	dir    string
	args   []string // of the server
	client *client.Client
	server *exec.Cmd
	exited chan struct{} // closed when the server was waited for
}

// poolName is the pool's, in the station's state directory.
const poolName = "bench"

// startStation returns when the server answers. Its mount namespace is its own, as
// in a cluster: a server that sees the mounts of its devices can wait for itself.
func (b *bench) startStation(ctx context.Context, maxDevices int) (_ *station, err error) {
	s := &station{}
	if s.dir, err = os.MkdirTemp(b.o.Dir, "csi-ublk-bench-"); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	for _, name := range []string{poolName, inlinePool} {
		if err := os.MkdirAll(filepath.Join(s.poolDir(name), "volumes"), 0o700); err != nil {
			return nil, fmt.Errorf("make pool: %w", err)
		}
	}
	if s.client, err = client.Dial(s.socket()); err != nil {
		return nil, err
	}
	s.args = slices.Concat(b.o.Command, []string{
		"server", "--state-dir", s.dir, "--socket", s.socket(), "--http-address", "", "--max-devices", strconv.Itoa(maxDevices),
	})
	if err := s.launch(); err != nil {
		return nil, err
	}
	return s, s.ready(ctx)
}

// launch runs the server.
func (s *station) launch() error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close()
	server := exec.Command(s.args[0], s.args[1:]...)
	server.Stderr = log
	// A Ctrl-C at the terminal is for this process, which needs the server to
	// clean up.
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: syscall.CLONE_NEWNS}
	if err := server.Start(); err != nil {
		return fmt.Errorf("start device server: %w", err)
	}
	exited := make(chan struct{})
	s.server, s.exited = server, exited
	go func() {
		defer close(exited)
		_ = server.Wait()
	}()
	return nil
}

func (s *station) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for begin := time.Now(); ; {
		i, err := s.client.Info(ctx)
		// Its probe of the kernel would disturb what is measured.
		probed := i.DeleteKind != ublk.DeleteUnknown.String() || time.Since(begin) > probePatience
		if err == nil && probed {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.exited:
			return s.ended()
		case <-ctx.Done():
			return fmt.Errorf("the device server does not answer: %w: %w: %s", err, ctx.Err(), s.lastWords())
		}
	}
}

// probePatience is more than a probe takes; one that fails never says so.
const probePatience = 20 * time.Second

func (s *station) poolDir(name string) string { return filepath.Join(s.dir, "pools", name) }
func (s *station) socket() string             { return filepath.Join(s.dir, "s") }
func (s *station) logPath() string            { return filepath.Join(s.dir, "log") }

// lastWords is the end of the server's log.
func (s *station) lastWords() []byte {
	text, _ := os.ReadFile(s.logPath())
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-5):], []byte("\n"))
}

func volumeID(prefix string, i int) string { return fmt.Sprintf("%s%05d", prefix, i) }

func (s *station) path(id string) string { return pool.VolumePath(s.dir, poolName, id) }

// blank makes a volume's file anew: all holes. Not through the pool: full sizes
// may add up to more than the disk has, and nothing is ever written to most.
func (s *station) blank(id string, bytes int64) error {
	if err := os.WriteFile(s.path(id), nil, 0o600); err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	if err := os.Truncate(s.path(id), bytes); err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	return nil
}

// blanks makes n volumes, v00000 and on.
func (s *station) blanks(n int, bytes int64) error {
	for i := range n {
		if err := s.blank(volumeID("v", i), bytes); err != nil {
			return err
		}
	}
	return nil
}

func (s *station) attach(ctx context.Context, id string) (client.Device, error) {
	return s.client.Attach(ctx, id, client.AttachOptions{Path: s.path(id)})
}

// settled waits until the kernel has let go of every device but those of the
// volumes that are attached.
func (s *station) settled(ctx context.Context, attached int) error {
	for {
		left, err := s.devices(ctx)
		if err != nil || left <= attached {
			return err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-s.exited:
			return s.ended()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// devices counts those of the server, of volumes and on their way out.
func (s *station) devices(ctx context.Context) (int, error) {
	i, err := s.client.Info(ctx)
	return int(i.Attached + i.Releasing), err
}

func (s *station) ended() error {
	return fmt.Errorf("the device server has ended: %s", s.lastWords())
}

// close detaches what is attached, ends the server and removes the directory.
func (s *station) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	var errs []error
	var left error
	if s.server != nil {
		left = s.detachAll(ctx)
		errs = append(errs, s.end())
	}
	if s.client != nil {
		errs = append(errs, s.client.Close())
	}
	err := errors.Join(errs...)
	if left != nil {
		return errors.Join(err, fmt.Errorf("devices are left, and the state directory %s with the server's log: start csi-ublk server --state-dir on it to have them served again, or delete them: %w", s.dir, left))
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// detachAll goes on until nothing is left: attaches that a cancelled run has begun
// end in their own time.
func (s *station) detachAll(ctx context.Context) error {
	for {
		if err := s.revive(ctx); err != nil {
			return err
		}
		left, err := s.devices(ctx)
		if err != nil && s.dies() {
			continue
		}
		if err != nil || left == 0 {
			return err
		}
		list, err := s.client.List(ctx)
		if err != nil {
			return fmt.Errorf("list what is attached: %w", err)
		}
		errs := make([]error, len(list))
		_ = each(ctx, 32, len(list), func(ctx context.Context, i int) error {
			errs[i] = s.client.Detach(ctx, list[i].VolumeID)
			return nil
		})
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.exited:
			return s.ended()
		case <-ctx.Done():
			return fmt.Errorf("detach %d volumes: %w: %w", left, ctx.Err(), errors.Join(errs...))
		}
	}
}

// dies says whether the server, which did not answer, is on its end.
func (s *station) dies() bool {
	select {
	case <-s.exited:
		return true
	case <-time.After(5 * time.Second):
		return false
	}
}

// revive starts a server that has ended: it may have left devices behind.
func (s *station) revive(ctx context.Context) error {
	select {
	case <-s.exited:
	default:
		return nil
	}
	if err := s.launch(); err != nil {
		return err
	}
	return s.ready(ctx)
}

func (s *station) end() error {
	if err := s.server.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end device server: %w", err)
	}
	select {
	case <-s.exited:
	case <-time.After(time.Minute):
		return fmt.Errorf("the device server (process %d) does not end", s.server.Process.Pid)
	}
	if !s.server.ProcessState.Success() {
		return fmt.Errorf("the device server has ended with %s: %s", s.server.ProcessState, s.lastWords())
	}
	return nil
}
