package worker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// Options are a worker process's.
type Options struct {
	// Rings is the number of ring threads; 0 means DefaultRings.
	Rings int
	// FencePath is the named pipe whose write end every ring holds. Required;
	// the reader must have it open.
	FencePath string
	// Socket is this end of the socket pair, Counters the shared memory. Run
	// takes both over.
	Socket, Counters *os.File
}

// Descriptors of a child: Process puts these files there.
const (
	SocketFD   = 3
	CountersFD = 4
)

// DefaultRings is a quarter of the CPUs, from 1 to 4.
func DefaultRings() int { return max(1, min(4, runtime.NumCPU()/4)) }

// Run serves until the server closes the socket, and returns nil then, or until it can't
// serve a device any more. The process must end right after: devices are still open, and
// the kernel hands their I/O to the next worker only once this one is gone.
func Run(o Options) error {
	// The server decides when this process ends, not whoever signals its group.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if o.Rings <= 0 {
		o.Rings = DefaultRings()
	}
	// With no idle P left, a ring thread that returns from the kernel waits for
	// one: that costs a third of the CPU time per I/O.
	runtime.GOMAXPROCS(o.Rings + 2)
	// A collection shows in the latency of I/O, and there is little to collect.
	debug.SetGCPercent(400)

	warnings := protect()
	counters, err := mapCounters(o.Counters)
	if err != nil {
		return err
	}
	rings, err := openRings(o.Rings, o.FencePath)
	if err != nil {
		return err
	}
	w := newTable(rings, counters)
	w.noAdmin = sync.OnceValue(giveUpAdmin)
	go w.answer(o.Socket)
	h := hello{version: protocolVersion, rings: uint32(len(rings)), warnings: strings.Join(warnings, "\n")}
	if _, err := o.Socket.Write(endFrame(appendHello(beginFrame(nil, frameHello), &h), 0)); err != nil {
		return fmt.Errorf("greet server: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.read(o.Socket) }()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-look.C:
			if err := w.broken(); err != nil {
				return fmt.Errorf("serve: %w", err)
			}
		}
	}
}

// openRings starts the rings, each with the fence registered. The process's own
// descriptor of it is closed before anything is served: only the rings' hold.
func openRings(n int, fencePath string) ([]*ublk.Ring, error) {
	fence, err := os.OpenFile(fencePath, os.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open fence: %w", err)
	}
	defer fence.Close()
	rings := make([]*ublk.Ring, n)
	for i := range rings {
		if rings[i], err = ublk.NewRing(ublk.RingOptions{Fence: fence}); err != nil {
			return nil, fmt.Errorf("start ring %d: %w", i, err)
		}
	}
	return rings, nil
}

// read takes requests until the socket ends.
func (t *table) read(socket io.Reader) error {
	r := bufio.NewReaderSize(socket, 64<<10)
	var buf []byte
	for {
		body, err := readFrame(r, buf)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
				return nil
			}
			return err
		}
		buf = body
		list, err := decodeRequests(body)
		if err != nil {
			return err
		}
		for i := range list {
			t.start(list[i])
		}
	}
}

// answer sends results as they come, as many in a frame as are there.
func (t *table) answer(socket io.Writer) {
	var buf []byte
	for first := range t.results {
		buf = appendResult(beginFrame(buf, frameResults), &first)
		n := 1
	more:
		for n < maxBatch {
			select {
			case r := <-t.results:
				buf = appendResult(buf, &r)
				n++
			default:
				break more
			}
		}
		// A server that is gone ends read, and with it the process.
		if _, err := socket.Write(endFrame(buf, n)); err != nil {
			return
		}
	}
}
