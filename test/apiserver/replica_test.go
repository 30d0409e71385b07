//go:build kube

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// replica is one controller process.
type replica struct {
	cmd    *exec.Cmd
	log    string // file
	conn   *grpc.ClientConn
	exited chan struct{} // closed when err is set
	err    error
	csi.ControllerClient
	csi.IdentityClient
}

func startReplica(dir string) (*replica, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	r := &replica{log: filepath.Join(dir, "log"), exited: make(chan struct{})}
	log, err := os.Create(r.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	r.cmd = exec.Command(binary, "controller", "--kubeconfig", kubeconfig, "--endpoint", endpoint, "--http-address", "127.0.0.1:0",
		"--leader-election-namespace", "default", "--taint-wedged-nodes", "--node-plugin-pods", "app="+pluginApp, "--node-plugin-grace", pluginGrace.String(),
		"--log-level", "debug")
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is the death of this very thread
		err := r.cmd.Start()
		started <- err
		if err == nil {
			r.err = r.cmd.Wait()
			close(r.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if r.conn, err = grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true))); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	r.ControllerClient, r.IdentityClient = csi.NewControllerClient(r.conn), csi.NewIdentityClient(r.conn)
	return r, nil
}

// awaitReady waits for Probe to say ready, as the sidecars do.
func (r *replica) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		p, err := r.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && p.Ready.GetValue() {
			return nil
		}
		select {
		case <-r.exited:
			log, _ := os.ReadFile(r.log)
			return fmt.Errorf("controller ended: %w\n%s", r.err, log)
		case <-ctx.Done():
			log, _ := os.ReadFile(r.log)
			return fmt.Errorf("controller is not ready: %v\n%s", err, log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends the process in order and returns how it ended.
func (r *replica) stop() error {
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.exited:
	case <-time.After(30 * time.Second):
		_ = r.cmd.Process.Kill()
		<-r.exited
	}
	if r.conn != nil {
		r.conn.Close()
	}
	return r.err
}
