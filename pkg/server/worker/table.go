package worker

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// openers bounds how many devices are opened at once: more only wait for the
// same ring threads.
const openers = 16

// A table holds the devices that this process serves.
type table struct {
	rings    []*ublk.Ring
	counters *Counters
	results  chan result
	openers  chan struct{}

	mu      sync.Mutex
	devices map[uint32]*served
	load    []int // queues on each ring
}

// served is one device. Its fields are written by its attach before it is in
// the table.
type served struct {
	device *ublk.Device
	file   *os.File
	rings  []int // the ring of each queue
}

func newTable(rings []*ublk.Ring, c *Counters) *table {
	return &table{
		rings:    rings,
		counters: c,
		results:  make(chan result, maxBatch),
		openers:  make(chan struct{}, openers),
		devices:  make(map[uint32]*served),
		load:     make([]int, len(rings)),
	}
}

// start runs one operation on a goroutine of its own; the server never has two
// of one device under way. They all end with the process.
func (t *table) start(r request) {
	go func() {
		err := t.do(&r)
		answer := result{seq: r.seq}
		if err != nil {
			var errno syscall.Errno
			if errors.As(err, &errno) {
				answer.errno = uint32(errno)
			}
			answer.text = err.Error()
		}
		t.results <- answer
	}()
}

func (t *table) do(r *request) error {
	switch r.op {
	case opAttach:
		t.openers <- struct{}{}
		defer func() { <-t.openers }()
		return t.attach(r)
	case opDrain:
		// A device that was never opened here has nothing to drain or close.
		if s := t.get(r.device); s != nil {
			<-s.device.Done()
		}
		return nil
	case opClose:
		return t.close(r.device)
	case opHold, opResume, opLimit:
		if s := t.get(r.device); s != nil {
			return s.gate(r)
		}
		return fmt.Errorf("device %d is not served here: %w", r.device, unix.ENODEV)
	}
	return fmt.Errorf("operation %d: %w", r.op, errors.ErrUnsupported)
}

func (t *table) get(id uint32) *served {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.devices[id]
}

// attach opens a device and its file and arms every tag. If arming fails half
// way the device stays in the table: only Stop ends the tags that are armed, so
// the server goes on with Stop, drain and close, as for any device.
func (t *table) attach(r *request) error {
	c, err := t.counters.At(r.slot)
	if err != nil {
		return err
	}
	file, target, err := openTarget(r, c)
	if err != nil {
		return err
	}
	device, err := ublk.OpenDevice(ublk.DeviceInfo{
		ID: r.device, Queues: r.queues, Depth: r.depth, MaxIOBytes: r.maxIOBytes, Features: ublk.Features(r.features),
	})
	if err != nil {
		file.Close()
		return err
	}
	s := &served{device: device, file: file, rings: t.place(int(r.queues))}
	t.mu.Lock()
	t.devices[r.device] = s
	t.mu.Unlock()
	device.SetLimits(r.limits)
	for q := range r.queues {
		if err := device.Serve(q, t.rings[s.rings[q]], target, c); err != nil {
			return fmt.Errorf("serve queue %d: %w", q, err)
		}
	}
	return nil
}

// openTarget opens the backing file and makes sure that it is the one the
// server checked.
func openTarget(r *request, c *ublk.Counters) (*os.File, ublk.Target, error) {
	mode := unix.O_RDWR
	if r.readOnly {
		mode = unix.O_RDONLY
	}
	f, err := os.OpenFile(r.path, mode|unix.O_DIRECT|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("stat %s: %w", r.path, err)
	}
	if st.Dev != r.fileDevice || st.Ino != r.fileInode {
		f.Close()
		return nil, nil, fmt.Errorf("open %s: another file is there (inode %d, want %d): %w", r.path, st.Ino, r.fileInode, unix.ESTALE)
	}
	if c.Failed.Load() != 0 {
		// A failed flush fails the volume for as long as it is attached; a new
		// worker must not forget that.
		return f, ublk.FromBackend(failed{}), nil
	}
	target, err := ublk.File(f, ublk.FileOptions{Info: &r.file})
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, target, nil
}

// place picks the least loaded ring for each queue.
func (t *table) place(queues int) []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]int, queues)
	for q := range list {
		best := 0
		for i, n := range t.load {
			if n < t.load[best] {
				best = i
			}
		}
		t.load[best]++
		list[q] = best
	}
	return list
}

func (t *table) close(id uint32) error {
	s := t.get(id)
	if s == nil {
		return nil
	}
	// An error means that tags are still armed: the device stays.
	if err := s.device.Close(); err != nil {
		return err
	}
	t.mu.Lock()
	delete(t.devices, id)
	for _, r := range s.rings {
		t.load[r]--
	}
	t.mu.Unlock()
	return s.file.Close()
}

// failed answers for a file that lost a flush.
type failed struct{}

func (failed) ReadAt([]byte, int64) (int, error)  { return 0, syscall.EIO }
func (failed) WriteAt([]byte, int64) (int, error) { return 0, syscall.EIO }
func (failed) Flush() error                       { return syscall.EIO }
func (failed) Discard(_, _ int64) error           { return syscall.EIO }
func (failed) WriteZeroes(_, _ int64) error       { return syscall.EIO }
