//go:build ublk && linux

package ublk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A server of the recovery tests is this test binary, run again: a process that
// opens a device, serves it out of a file, says so and waits to be killed.
const serverEnv = "UBLK_TEST_SERVER"

type serverTask struct {
	Device DeviceInfo
	File   string
}

func TestMain(m *testing.M) {
	if task := os.Getenv(serverEnv); task != "" {
		if err := beServer(task); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func beServer(task string) error {
	var t serverTask
	if err := json.Unmarshal([]byte(task), &t); err != nil {
		return err
	}
	f, err := os.OpenFile(t.File, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	target, err := File(f, FileOptions{})
	if err != nil {
		return err
	}
	// The fence is descriptor 3, and lives on in the ring alone.
	fence := os.NewFile(3, "fence")
	r, err := NewRing(RingOptions{Fence: fence})
	if err != nil {
		return err
	}
	if err := fence.Close(); err != nil {
		return err
	}
	d, err := OpenDevice(t.Device)
	if err != nil {
		return err
	}
	if err := d.Serve(0, r, target, nil); err != nil {
		return err
	}
	fmt.Println("ready")
	<-d.Done()
	if err := d.Close(); err != nil {
		return err
	}
	return r.Close()
}

// A server is one such process.
type server struct {
	cmd   *exec.Cmd
	fence *os.File // ends when nothing of the process can reach the file
	out   *bufio.Reader
}

func startServer(t testing.TB, info DeviceInfo, file string) *server {
	t.Helper()
	task, err := json.Marshal(serverTask{info, file})
	if err != nil {
		t.Fatal(err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{cmd: exec.Command("/proc/self/exe"), fence: in}
	s.cmd.Env = append(os.Environ(), serverEnv+"="+string(task))
	s.cmd.ExtraFiles = []*os.File{out}
	s.cmd.Stderr = os.Stderr
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	s.out = bufio.NewReader(stdout)
	if line, err := s.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("server says %q, %v", line, err)
	}
	return s
}

func (s *server) kill(t testing.TB) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait()
	if n, err := io.Copy(io.Discard, s.fence); n != 0 || err != nil {
		t.Fatalf("fence: %d, %v", n, err)
	}
	s.fence.Close()
}

// Servers are killed under verified I/O and replaced: the user sees a pause, no
// error and no byte that is not his.
func TestRecoveryAfterKill(t *testing.T) {
	c := control(t)
	target, file := fileTarget(t, newFS(t, "xfs").dir, 16<<20, true)
	info := add(t, c, DeviceOptions{
		ID: -1, Depth: 16, Features: UserRecovery | UserRecoveryReissue | c.Features()&NoAutoPartScan,
	})
	ctx := ctxFor(t)
	if err := c.SetParams(ctx, info.ID, target.Info().Params()); err != nil {
		t.Fatal(err)
	}
	srv := startServer(t, info, file.Name())
	if err := c.Start(ctx, info.ID, srv.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Info(ctx, info.ID); err != nil || got.Pid != srv.cmd.Process.Pid {
		t.Errorf("served by %d, want %d, %v", got.Pid, srv.cmd.Process.Pid, err)
	}

	var stop atomic.Bool
	var rounds atomic.Int64
	var users sync.WaitGroup
	for w := range 4 {
		f, err := os.OpenFile(info.BlockPath(), os.O_RDWR|unix.O_DIRECT, 0)
		if err != nil {
			t.Fatal(err)
		}
		b, want := aligned(t, 32<<10), make([]byte, 32<<10)
		users.Go(func() {
			defer f.Close()
			for i := uint64(0); !stop.Load(); i++ {
				off := int64(w)<<22 + int64(i%64)*int64(len(b))
				stamp(b, i<<8|uint64(w))
				copy(want, b)
				if _, err := f.WriteAt(b, off); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				clear(b)
				if _, err := f.ReadAt(b, off); err != nil {
					t.Errorf("read: %v", err)
					return
				}
				if !bytes.Equal(b, want) {
					t.Errorf("writer %d round %d: other bytes", w, i)
					return
				}
				rounds.Add(1)
			}
		})
	}
	const kills = 8
	for range kills {
		before := rounds.Load()
		waitFor(t, "I/O to go on", func() bool { return rounds.Load() > before+8 || t.Failed() })
		begin := time.Now()
		srv.kill(t)
		waitFor(t, "recovery to begin", func() bool {
			err := c.StartRecovery(ctx, info.ID)
			if err != nil && !errors.Is(err, unix.EBUSY) {
				t.Fatal(err)
			}
			return err == nil
		})
		if got, err := c.Info(ctx, info.ID); err != nil || got.State != StateQuiesced {
			t.Errorf("state %v, %v", got.State, err)
		}
		srv = startServer(t, info, file.Name())
		if err := c.EndRecovery(ctx, info.ID, srv.cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		t.Logf("down for %v", time.Since(begin))
	}
	stop.Store(true)
	users.Wait()
	t.Logf("%d rounds", rounds.Load())

	if err := c.Stop(ctx, info.ID); err != nil {
		t.Error(err)
	}
	if err := c.DeleteAsync(ctx, info.ID); err != nil {
		t.Error(err)
	}
	if err := srv.cmd.Wait(); err != nil {
		t.Errorf("the last server did not end well: %v", err)
	}
	waitGone(t, info)
}

// Without a new server I/O waits, and a stop ends the wait with an error.
func TestStopOfAnOrphanedDevice(t *testing.T) {
	c := control(t)
	target, file := fileTarget(t, newFS(t, "xfs").dir, 16<<20, true)
	info := add(t, c, DeviceOptions{ID: -1, Features: UserRecovery | UserRecoveryReissue | c.Features()&NoAutoPartScan})
	ctx := ctxFor(t)
	if err := c.SetParams(ctx, info.ID, target.Info().Params()); err != nil {
		t.Fatal(err)
	}
	srv := startServer(t, info, file.Name())
	if err := c.Start(ctx, info.ID, srv.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(info.BlockPath(), os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	srv.kill(t)
	waitFor(t, "the kernel to notice", func() bool {
		got, err := c.Info(ctx, info.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got.State == StateQuiesced
	})
	b := aligned(t, 4096)
	ended := make(chan error, 1)
	go func() {
		_, err := f.ReadAt(b, 0)
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Errorf("I/O without a server ended: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := c.Stop(ctx, info.ID); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("I/O without a server succeeded")
		}
	case <-time.After(10 * time.Second):
		t.Error("I/O still waits after the stop")
	}
}

// A write that is on its way to the disk outlives the process that sent it, and
// could land on top of a newer one. The fence must not end before it has landed.
func TestFenceHoldsWhileAWriteIsInFlight(t *testing.T) {
	c := control(t)
	medium := &gatedRAM{ram: newRAM(16 << 20), entered: make(chan struct{}, 1), gate: make(chan struct{})}
	below := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(16<<20), FromBackend(medium))
	dir := t.TempDir()
	run(t, "mkfs.ext4", "-q", below.BlockPath())
	mount(t, below.BlockPath(), dir, "ext4", "")
	target, file := fileTarget(t, dir, 4<<20, true)
	b := aligned(t, 4096)
	if _, err := file.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	info := add(t, c, DeviceOptions{ID: -1, Features: UserRecovery | UserRecoveryReissue | c.Features()&NoAutoPartScan})
	ctx := ctxFor(t)
	if err := c.SetParams(ctx, info.ID, target.Info().Params()); err != nil {
		t.Fatal(err)
	}
	srv := startServer(t, info, file.Name())
	if err := c.Start(ctx, info.ID, srv.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(info.BlockPath(), os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	medium.armed.Store(true)
	ended := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(b, 0)
		ended <- err
	}()
	<-medium.entered
	if err := srv.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := srv.fence.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := srv.fence.Read(b[:1]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the fence with a write in flight: %v", err)
	}
	close(medium.gate)
	if err := srv.fence.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	srv.kill(t)
	if err := c.Stop(ctx, info.ID); err != nil {
		t.Error(err)
	}
	<-ended
}

// A stop that waits for a request which nobody answers cannot be called back. Its
// caller must get away all the same, and say so; other devices go on.
func TestCommandTheKernelDoesNotLetGoOf(t *testing.T) {
	c := control(t)
	medium := &gatedRAM{ram: newRAM(4 << 20), entered: make(chan struct{}, 1), gate: make(chan struct{})}
	s := serve(t, c, newTestRing(t, RingOptions{}), DeviceOptions{ID: -1}, ramParams(4<<20), FromBackend(medium))
	f := s.disk(t)
	b := aligned(t, 4096)
	medium.armed.Store(true)
	ended := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(b, 0)
		ended <- err
	}()
	<-medium.entered
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	err := c.Stop(ctx, s.ID)
	if !errors.Is(err, ErrWedged) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop with a request unanswered: %v", err)
	}
	if n := len(c.slots); n != slotCount-1 {
		t.Errorf("%d of %d slots free, while the kernel has the memory of one", n, slotCount)
	}
	other := add(t, c, DeviceOptions{ID: -1})
	if _, err := c.Info(ctxFor(t), other.ID); err != nil {
		t.Errorf("another device: %v", err)
	}
	close(medium.gate)
	<-ended
	waitFor(t, "the stop to end", func() bool { return len(c.slots) == slotCount })
}

// gatedRAM holds up one write.
type gatedRAM struct {
	*ram
	armed         atomic.Bool
	entered, gate chan struct{}
}

func (m *gatedRAM) WriteAt(p []byte, off int64) (int, error) {
	if m.armed.CompareAndSwap(true, false) {
		m.entered <- struct{}{}
		<-m.gate
	}
	return m.ram.WriteAt(p, off)
}
