package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// Options are a server's. StateDir is required.
type Options struct {
	// StateDir is where pools/ and server/ are; one server at a time.
	StateDir string
	// Socket is the path of the API's socket; "" means
	// /run/csi-ublk/server.sock.
	Socket string
	// HTTPAddress serves /healthz, /readyz and /metrics; "" means no HTTP.
	HTTPAddress string
	// MaxDevices is how many devices the kernel may have, those of other servers
	// included, for this server to add one; 0 means 4096. The driver's own limit is
	// raised to it.
	MaxDevices uint32
	// Rings is the number of rings of a worker; 0 lets the worker choose.
	Rings int
	// CommandTimeout bounds each control command; 0 means 30 s.
	CommandTimeout time.Duration
	// LockPatience is how long to wait for another server to end; 0 means a
	// minute.
	LockPatience time.Duration
	// WorkerCommand starts a worker; nil means this binary.
	WorkerCommand []string
	// ThawCommand starts a process that calls Thaw with the descriptor ThawFD; nil means
	// this binary.
	ThawCommand []string
	// Version is reported as it is.
	Version string
	// Logger takes the log; nil means slog.Default.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Socket == "" {
		o.Socket = "/run/csi-ublk/server.sock"
	}
	if o.MaxDevices == 0 {
		o.MaxDevices = 4096
	}
	if o.LockPatience == 0 {
		o.LockPatience = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// deletesAtOnce bounds blocking DEL_DEVs, where there is no asynchronous one.
const deletesAtOnce = 16

// A Server is one run of the device server.
type Server struct {
	options  Options
	log      *slog.Logger
	poolsDir string
	fenceDir string
	bootID   string
	owner    owner
	journal  *journal
	kernel   *kernel
	workers  *supervisor
	counters *worker.Counters
	table    *table
	users    *users
	backings backings
	metrics  *metrics
	adopted  atomic.Bool
	// awaitFences is fenceSet.wait; only the test that shows what happens
	// without it replaces it.
	awaitFences func(ctx context.Context, fileSystem uint64) error
	cutSteps    cutSteps

	lanes    lanes
	deleting *semaphore.Weighted

	// stopping is done when the server ends; background are the operations,
	// recoveries and releases that end upon it.
	stopping   context.Context
	stop       context.CancelFunc
	background sync.WaitGroup
}

// Run serves until ctx is done, and returns nil then. Devices stay as they are:
// the kernel holds their I/O until the next server takes them over.
func Run(ctx context.Context, o Options) error {
	o = o.withDefaults()
	dir := filepath.Join(o.StateDir, "server")
	for _, d := range []string{filepath.Join(o.StateDir, "pools"), filepath.Join(dir, "fence")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("make state directory: %w", err)
		}
	}
	lock, err := lockStateDir(ctx, filepath.Join(dir, "lock"), o.LockPatience)
	if err != nil {
		return err
	}
	defer lock.Close()
	s, err := open(o, dir)
	if err != nil {
		return err
	}
	defer s.close()
	return s.run(ctx)
}

// open makes a server that has touched no device yet.
func open(o Options, dir string) (_ *Server, err error) {
	s := &Server{
		options: o, log: o.Logger, metrics: newMetrics(),
		poolsDir: filepath.Join(o.StateDir, "pools"), fenceDir: filepath.Join(dir, "fence"),
		users:    newUsers("/proc"),
		deleting: semaphore.NewWeighted(deletesAtOnce),
		cutSteps: realCut,
	}
	if s.bootID, err = readBootID(); err != nil {
		return nil, err
	}
	if s.owner, err = loadOwner(filepath.Join(dir, "owner")); err != nil {
		return nil, err
	}
	if s.journal, err = openJournal(filepath.Join(dir, "journal"), s.bootID, s.owner.id); err != nil {
		return nil, err
	}
	control, err := ublk.OpenControl(ublk.ControlOptions{Timeout: o.CommandTimeout, Owner: s.owner.tag})
	if err != nil {
		return nil, err
	}
	if err := control.Features().Require(requiredFeatures); err != nil {
		return nil, errors.Join(err, control.Close())
	}
	s.kernel = &kernel{control: control, metrics: s.metrics}
	if s.counters, err = worker.NewCounters(int(o.MaxDevices)); err != nil {
		return nil, errors.Join(err, control.Close())
	}
	s.table = newTable(int(o.MaxDevices), s.counters)
	s.workers = newSupervisor(s.log, s.fenceDir, worker.ProcessOptions{
		Command: o.WorkerCommand, Rings: o.Rings, Counters: s.counters,
	}, s.metrics, func(*generation) { s.recoverLost() })
	s.awaitFences = s.workers.fences.wait
	s.metrics.registry.MustRegister(volumeCollector{s})
	s.stopping, s.stop = context.WithCancel(context.Background())
	return s, nil
}

func (s *Server) run(ctx context.Context) error {
	if err := raiseKernelLimit(maxDevicesPath, s.options.MaxDevices); err != nil {
		s.log.Warn("device limit of the driver stays", "error", err)
	}
	// Before there are workers of our own, whose fences are not to be waited for.
	fences, err := openFences(s.fenceDir)
	if err != nil {
		return err
	}
	for _, f := range fences {
		s.workers.fences.add(f)
	}
	workersCtx, stopWorkers := context.WithCancel(context.Background())
	var workersDone sync.WaitGroup
	workersDone.Go(func() { s.workers.run(workersCtx) })
	defer func() {
		// In this order: no new work; what is under way ends while there are
		// workers to end it; then the workers, then the fences' watch.
		s.drain()
		stopWorkers()
		workersDone.Wait()
		s.workers.fences.close()
	}()
	if err := s.adopt(); err != nil {
		return err
	}
	s.adopted.Store(true)
	s.background.Go(s.watchVolumes)
	s.background.Go(s.watchKernel)
	s.background.Go(func() {
		kind, err := s.probeKind()
		s.log.Info("kernel probed", "release", kernelRelease(), "deleteKind", kind, "error", fmt.Sprint(err))
	})
	return s.serve(ctx)
}

// probeKind waits for recovery, which needs the driver's mutex more.
func (s *Server) probeKind() (string, error) {
	ctx, cancel := context.WithTimeout(s.stopping, 30*time.Second)
	defer cancel()
	for s.table.recoveringCount() > 0 {
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return ublk.DeleteUnknown.String(), err
		}
	}
	// Not to be cut short by the server's end: it has devices of its own.
	err := s.kernel.probeDeleteKind(context.WithoutCancel(ctx))
	return s.kernel.deleteKind().String(), err
}

// drainLimit bounds how long the end of the server waits for releases.
const drainLimit = 20 * time.Second

// drain waits for releases that are nearly done, and ends everything else.
func (s *Server) drain() {
	for deadline := time.Now().Add(drainLimit); s.table.releasingCount() > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	s.stop()
	s.background.Wait()
}

func (s *Server) close() {
	if err := errors.Join(s.kernel.control.Close(), s.counters.Close()); err != nil {
		s.log.Error("server not closed cleanly", "error", err)
	}
}
