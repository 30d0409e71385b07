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
	// noAdmin is called before a device is opened whose kernel looks for partitions.
	noAdmin func() error

	mu       sync.Mutex
	devices  map[uint32]*served
	openings map[uint32]*opening
	load     []int // queues on each ring
}

// An opening is an attach under way. It waits for its file as long as a disk hangs, and
// meanwhile its device may be given up, and somebody else's have the number.
type opening struct {
	begun   bool // the device is opened now: it is over soon
	givenUp bool
	done    chan struct{}
}

// served is one device. Its fields are written by its attach before it is in
// the table.
type served struct {
	device *ublk.Device
	file   *os.File
	rings  []int // the ring of each queue
	// armed, under the table's mutex, is set once all tags are.
	armed bool
}

func newTable(rings []*ublk.Ring, c *Counters) *table {
	return &table{
		rings:    rings,
		counters: c,
		results:  make(chan result, maxBatch),
		openers:  make(chan struct{}, openers),
		noAdmin:  func() error { return nil },
		devices:  make(map[uint32]*served),
		openings: make(map[uint32]*opening),
		load:     make([]int, len(rings)),
	}
}

// start runs one operation on a goroutine of its own. The server never has two of one
// device under way, but for those that end what an attach has begun, which come after it.
// They all end with the process.
func (t *table) start(r request) {
	o := t.begin(&r)
	go func() {
		err := t.do(&r, o)
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

// begin notes an attach, and returns nil for any other operation.
func (t *table) begin(r *request) *opening {
	if r.op != opAttach {
		return nil
	}
	o := &opening{done: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.openings[r.device] = o
	return o
}

// do carries out what begin has noted.
func (t *table) do(r *request, o *opening) error {
	switch r.op {
	case opAttach:
		defer t.endOpening(r.device, o)
		t.openers <- struct{}{}
		defer func() { <-t.openers }()
		return t.attach(r, o)
	case opDrain:
		t.giveUpOpening(r.device)
		// A device that was never opened here has nothing to drain or close.
		if s := t.get(r.device); s != nil {
			<-s.device.Done()
		}
		return nil
	case opClose:
		t.giveUpOpening(r.device)
		return t.close(r.device)
	case opHold, opResume, opLimit:
		if s := t.get(r.device); s != nil {
			return s.gate(r)
		}
		return fmt.Errorf("device %d is not served here: %w", r.device, unix.ENODEV)
	}
	return fmt.Errorf("operation %d: %w", r.op, errors.ErrUnsupported)
}

// giveUpOpening returns when no attach of the device is under way that could still open it.
func (t *table) giveUpOpening(id uint32) {
	t.mu.Lock()
	o := t.openings[id]
	if o != nil {
		o.givenUp = true
	}
	wait := o != nil && o.begun
	t.mu.Unlock()
	if wait {
		<-o.done
	}
}

// beginOpening says whether the device is still to be opened.
func (t *table) beginOpening(o *opening) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	o.begun = !o.givenUp
	return o.begun
}

func (t *table) endOpening(id uint32, o *opening) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.openings[id] == o { // else another one of that number has begun
		delete(t.openings, id)
	}
	close(o.done)
}

func (t *table) get(id uint32) *served {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.devices[id]
}

// attach opens a device and its file and arms every tag. If arming fails half
// way the device stays in the table: only Stop ends the tags that are armed, so
// the server goes on with Stop, drain and close, as for any device.
func (t *table) attach(r *request, o *opening) error {
	c, err := t.counters.At(r.slot)
	if err != nil {
		return err
	}
	file, target, err := openTarget(r, c)
	if err != nil {
		return err
	}
	if !t.beginOpening(o) {
		file.Close()
		return fmt.Errorf("open device %d: it was given up while its file was waited for: %w", r.device, unix.ECANCELED)
	}
	if !ublk.Features(r.features).Has(ublk.NoAutoPartScan) {
		if err := t.noAdmin(); err != nil {
			file.Close()
			return err
		}
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
	t.mu.Lock()
	s.armed = true
	t.mu.Unlock()
	return nil
}

// broken returns why this process can't serve a device any more that it serves, or nil:
// the driver refused a tag, or a ring broke down. Requests would wait for ever, so the
// process is to end, upon which another one recovers all of its devices.
func (t *table) broken() error {
	for _, r := range t.rings {
		if err := r.Err(); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.devices {
		select {
		case <-s.device.Done(): // nobody waits for it
		default:
			if err := s.device.Err(); s.armed && err != nil {
				return err
			}
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
