package ublk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// Control issues the driver's control commands. Its methods may be called from
// many goroutines; commands about different devices run at the same time as far
// as the kernel allows. Each blocks until the kernel answers, its context ends
// or ControlOptions.Timeout has passed.
//
// STOP_DEV and DEL_DEV make the kernel wait for the process that serves the
// device: a process must not control a device that it serves itself, other than
// in tests, or a SIGKILL at the wrong moment leaves it unkillable.
type Control struct {
	opt      ControlOptions
	file     *os.File
	fd       int
	features Features

	// slots holds the numbers of the free payload buffers, which also bounds
	// the commands in flight.
	slots   chan int
	payload []byte

	wake   int          // eventfd
	thread atomic.Int32 // the ring's, by its number

	mu       sync.Mutex
	queue    []task // not yet seen by the ring's goroutine
	closed   bool
	ended    chan struct{}
	loopDone error
}

// OpenControl opens the driver and asks for its features. The error says what
// has to be done about it: a module that is not loaded, io_uring forbidden. A
// driver without UserCopy, the only way this package moves data, is refused.
func OpenControl(o ControlOptions) (*Control, error) {
	o = o.withDefaults()
	f, err := os.OpenFile(o.Path, os.O_RDWR|unix.O_CLOEXEC, 0)
	// A private /dev lacks the node; a name that the driver does not have is a mistake.
	if errors.Is(err, fs.ErrNotExist) && filepath.Base(o.Path) == "ublk-control" && makeCharNode(o.Path, "/sys/class/misc/ublk-control/dev") == nil {
		f, err = os.OpenFile(o.Path, os.O_RDWR|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, opError("open", -1, explainOpen(err))
	}
	c := &Control{opt: o, file: f, fd: int(f.Fd()), slots: make(chan int, slotCount), ended: make(chan struct{})}
	if err := c.start(); err != nil {
		f.Close()
		return nil, opError("open", -1, err)
	}
	if err := c.readFeatures(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func explainOpen(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w (is the driver loaded? modprobe ublk_drv)", err)
	}
	return err
}

func (c *Control) readFeatures() error {
	var mask uint64
	err := c.do(context.Background(), request{op: sys.GetFeatures, dev: sys.AnyDevice, out: bytesOf(&mask)})
	if errors.Is(err, errors.ErrUnsupported) {
		return opError("GET_FEATURES", -1, fmt.Errorf("the driver is older than Linux 6.5: %w", errors.ErrUnsupported))
	}
	if err != nil {
		return err
	}
	c.features = Features(mask)
	return opError("GET_FEATURES", -1, c.features.Require(UserCopy|IoctlEncoding))
}

// Features are what the driver offers.
func (c *Control) Features() Features { return c.features }

// Add makes a device: /dev/ublkcN appears, for its server to open. It refuses
// features that the driver does not offer.
func (c *Control) Add(ctx context.Context, o DeviceOptions) (DeviceInfo, error) {
	o, err := o.withDefaults()
	if err == nil {
		err = c.features.Require(o.Features)
	}
	if err != nil {
		return DeviceInfo{}, opError(sys.AddDev.String(), int64(o.ID), err)
	}
	id := uint32(sys.AnyDevice)
	if o.ID >= 0 {
		id = uint32(o.ID)
	}
	info := sys.DevInfo{
		Queues: o.Queues, Depth: o.Depth, MaxIOBytes: o.MaxIOBytes,
		DevID: id, Flags: uint64(o.Features), ServerFlags: o.Owner,
	}
	err = c.do(ctx, request{op: sys.AddDev, dev: id, in: bytesOf(&info), out: bytesOf(&info)})
	if err != nil {
		return DeviceInfo{}, err
	}
	return infoOf(&info), nil
}

// Info asks for the state of a device.
func (c *Control) Info(ctx context.Context, id uint32) (DeviceInfo, error) {
	var info sys.DevInfo
	err := c.do(ctx, request{op: sys.GetDevInfo, dev: id, out: bytesOf(&info)})
	if err != nil {
		return DeviceInfo{}, err
	}
	return infoOf(&info), nil
}

func infoOf(i *sys.DevInfo) DeviceInfo {
	return DeviceInfo{
		ID: i.DevID, Queues: i.Queues, Depth: i.Depth, State: DeviceState(i.State),
		MaxIOBytes: i.MaxIOBytes, Pid: int(i.ServerPid), Features: Features(i.Flags), Owner: i.ServerFlags,
	}
}

// SetParams sets what the disk will look like, once, before Start.
func (c *Control) SetParams(ctx context.Context, id uint32, p Params) error {
	if p.MaxSectors == 0 {
		info, err := c.Info(ctx, id)
		if err != nil {
			return err
		}
		p.MaxSectors = info.MaxIOBytes / 512
	}
	raw, err := p.encode()
	if err != nil {
		return opError(sys.SetParams.String(), int64(id), err)
	}
	return c.do(ctx, request{op: sys.SetParams, dev: id, in: bytesOf(&raw)})
}

// Params reads them back, with the numbers of the device nodes.
func (c *Control) Params(ctx context.Context, id uint32) (Params, error) {
	raw := sys.Params{Len: sys.ParamsLen}
	err := c.do(ctx, request{op: sys.GetParams, dev: id, in: bytesOf(&raw), out: bytesOf(&raw)})
	if err != nil {
		return Params{}, err
	}
	return decodeParams(&raw), nil
}

// Start makes the disk appear: /dev/ublkbN. It waits until every tag of every
// queue is served. pid is the process that opened the char device, as this
// process's PID namespace numbers it.
func (c *Control) Start(ctx context.Context, id uint32, pid int) error {
	return c.do(ctx, request{op: sys.StartDev, dev: id, data: uint64(pid)})
}

// Stop removes the disk. Its users get errors from then on, after the kernel
// has written back what it had cached: the server must go on serving until
// Device.Done. On return /dev/ublkbN is gone.
func (c *Control) Stop(ctx context.Context, id uint32) error {
	return c.do(ctx, request{op: sys.StopDev, dev: id})
}

// TryStop is Stop for a disk that nobody has open; otherwise it changes nothing
// and the error is EBUSY. Without SafeStop it answers errors.ErrUnsupported.
func (c *Control) TryStop(ctx context.Context, id uint32) error {
	return c.doIf(ctx, SafeStop, request{op: sys.TryStopDev, dev: id})
}

// Delete removes a stopped device and waits until its number is free, which is
// when the last descriptor, mapping and user of it is gone. It is the wrong
// call for a device that has not been stopped: the driver would then stop it
// under a lock that all other devices need.
func (c *Control) Delete(ctx context.Context, id uint32) error {
	return c.do(ctx, request{op: sys.DelDev, dev: id})
}

// DeleteAsync is Delete without the wait. Called while the server still has the
// char device open, it leaves the slow part of the deletion to that close,
// outside the driver's global lock. Drivers without it (before Linux 6.9) give
// errors.ErrUnsupported.
func (c *Control) DeleteAsync(ctx context.Context, id uint32) error {
	return c.do(ctx, request{op: sys.DelDevAsync, dev: id})
}

// StartRecovery prepares a device whose server is gone for a new one. While the
// kernel has not yet noticed that the old one is gone, it answers EBUSY: try
// again.
func (c *Control) StartRecovery(ctx context.Context, id uint32) error {
	return c.do(ctx, request{op: sys.StartRecovery, dev: id})
}

// EndRecovery lets I/O flow to the new server, pid. It waits like Start. Before
// it, the caller must know that nothing of the old server can reach the file
// any more (RingOptions.Fence).
func (c *Control) EndRecovery(ctx context.Context, id uint32, pid int) error {
	return c.do(ctx, request{op: sys.EndRecovery, dev: id, data: uint64(pid)})
}

// UpdateSize changes the capacity of a disk in use. It answers
// errors.ErrUnsupported where the driver cannot.
func (c *Control) UpdateSize(ctx context.Context, id uint32, sectors uint64) error {
	return c.doIf(ctx, UpdateSize, request{op: sys.UpdateSize, dev: id, data: sectors})
}

// Quiesce takes a device from its server without an I/O error: every tag ends,
// the server closes the device, and a new one can recover it. The driver misses
// tags whose request was in flight: repeat the call until Device.Done. It
// answers EBUSY if within timeout (0: none) some queue had no tag at rest, and
// errors.ErrUnsupported for a device without the Quiesce feature.
func (c *Control) Quiesce(ctx context.Context, id uint32, timeout time.Duration) error {
	return c.doIf(ctx, Quiesce, request{op: sys.QuiesceDev, dev: id, data: uint64(timeout.Milliseconds())})
}

// doIf names the missing feature instead of letting the driver answer an errno.
func (c *Control) doIf(ctx context.Context, need Features, r request) error {
	if err := c.features.Require(need); err != nil {
		return opError(r.op.String(), int64(r.dev), err)
	}
	return c.do(ctx, r)
}

// Devices lists the devices the kernel has, of all servers, in no order. An
// error that matches fs.ErrNotExist means that the driver is not loaded.
func Devices() ([]uint32, error) {
	entries, err := os.ReadDir("/sys/class/ublk-char")
	if err != nil {
		return nil, opError("list", -1, err)
	}
	var ids []uint32
	for _, e := range entries {
		n, ok := strings.CutPrefix(e.Name(), "ublkc")
		if !ok {
			continue
		}
		if id, err := strconv.ParseUint(n, 10, 32); err == nil {
			ids = append(ids, uint32(id))
		}
	}
	return ids, nil
}

// Listed says whether the kernel lists a device of that id, whoever's it is. It
// takes the same time with any number of devices. After a deletion the id is
// unlisted a little before it is free.
func Listed(id uint32) (bool, error) {
	_, err := os.Lstat("/sys/class/ublk-char/ublkc" + strconv.FormatUint(uint64(id), 10))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, opError("list", int64(id), err)
}

// Incarnation returns a number that no earlier or later device of that id has: the inode
// of its entry in sysfs. The error matches fs.ErrNotExist if the kernel lists none.
func Incarnation(id uint32) (uint64, error) {
	var st unix.Stat_t
	path := "/sys/class/ublk-char/ublkc" + strconv.FormatUint(uint64(id), 10)
	if err := unix.Lstat(path, &st); err != nil {
		return 0, opError("list", int64(id), err)
	}
	return st.Ino, nil
}

func bytesOf[T any](p *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}
