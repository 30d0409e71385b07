package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
)

// Keep serves a cluster to other processes of this machine until ctx ends. A cluster dies with the process that started it, so
// one that is to stay has a process of its own that does nothing but this.
func (c *Cluster) Keep(ctx context.Context) error {
	l, err := net.Listen("unix", keeperSocket(c.dir))
	if err != nil {
		return fmt.Errorf("keep cluster %s: %w", c.spec.Name, err)
	}
	if err := os.Chmod(keeperSocket(c.dir), 0o600); err != nil {
		return fmt.Errorf("keep cluster %s: %w", c.spec.Name, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", c.serveState)
	mux.HandleFunc("POST /node/{node}/run", c.serveRun)
	mux.HandleFunc("POST /node/{node}/kill", c.serveNode(func(_ context.Context, n int) error { return c.Kill(n) }))
	mux.HandleFunc("POST /node/{node}/boot", c.serveNode(c.Boot))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() {
		<-ctx.Done()
		_ = s.Close()
	})
	err = s.Serve(l)
	if ctx.Err() != nil {
		err = nil
	}
	wg.Wait()
	return err
}

func keeperSocket(dir string) string { return filepath.Join(dir, "keeper.sock") }

// State is what a kept cluster tells about itself.
type State struct {
	Name, Kernel, Accel, Repo string
	Nodes                     []NodeState
	Kubeconfig, Kubectl       string
}

// NodeState is a node's.
type NodeState struct {
	Name, Address string
	On            bool
}

func (c *Cluster) serveState(w http.ResponseWriter, _ *http.Request) {
	i := c.Inside()
	s := State{
		Name: c.spec.Name, Kernel: fmt.Sprintf("%s %s", c.kernel.Variant, c.kernel.Release), Accel: string(c.accel), Repo: c.spec.Repo,
		Kubeconfig: i.Kubeconfig, Kubectl: i.Kubectl,
	}
	for n := 1; n <= c.spec.Nodes; n++ {
		on := false
		if g := c.guest(n); g != nil {
			select {
			case <-g.Done():
			default:
				on = true
			}
		}
		s.Nodes = append(s.Nodes, NodeState{Name: nodeName(n), Address: nodeAddress(n), On: on})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s) // A client that is gone does not miss it.
}

// statusTrailer carries a command's exit status, errorTrailer why it could not be run, after its output.
const (
	statusTrailer = "Exit-Status"
	errorTrailer  = "Run-Error"
)

// serveRun runs the script in the body on the node and streams its output.
func (c *Cluster) serveRun(w http.ResponseWriter, r *http.Request) {
	n, _ := strconv.Atoi(r.PathValue("node"))
	g, err := c.Node(n)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	script, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Trailer", statusTrailer+","+errorTrailer)
	w.WriteHeader(http.StatusOK)
	out := &flushing{w: w}
	status, err := g.Run(r.Context(), guest.Cmd{Args: []string{"bash", "-c", string(script)}, Stdout: out, Stderr: out})
	w.Header().Set(statusTrailer, strconv.Itoa(status))
	if err != nil {
		w.Header().Set(errorTrailer, fmt.Sprintf("%q", err.Error()))
	}
}

// flushing passes output on as it comes; stdout and stderr of a command share it.
type flushing struct {
	mu sync.Mutex
	w  http.ResponseWriter
}

func (f *flushing) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.w.Write(p)
	return n, errors.Join(err, http.NewResponseController(f.w).Flush())
}

func (c *Cluster) serveNode(do func(context.Context, int) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("node"))
		if err := do(r.Context(), n); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	}
}
