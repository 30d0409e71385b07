package server

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// A volume is what the server knows of one attached volume. The table's mutex
// guards all fields; the operation that holds the volume is the only one that
// changes them, except for what recovery and the watch do (noted there).
type volume struct {
	op      string // the operation under way; "" means none
	state   serverv1.Device_State
	message string
	entry   entry
	info    ublk.DeviceInfo
	major   uint32
	minor   uint32
	slot    uint32
	worker  *generation // who serves it; nil during adoption
	opener  opener      // who is to, once the recovery under way is over
	// vanished is set when the kernel's device is gone: its id may be anybody's
	// by now and must not be used any more.
	vanished bool
	// recovery is the one under way, as long as op is opRecover.
	recovery *recovery
	// lastOps and recentOps tell how busy the volume is, for recovery's order.
	lastOps, recentOps uint64
	// errors counts the requests that failed, as the watch saw it last, and told says when
	// it told of them last.
	errors uint64
	told   time.Time
}

// A table holds the volumes and their try-locks. No method of it blocks.
type table struct {
	mu      sync.Mutex
	volumes map[string]*volume
	// releasing are devices that nobody uses any more and that the kernel has
	// not let go of yet, by device id.
	releasing map[uint32]*release
	leftovers map[uint32]int // devices that nobody has and that are not releasing yet
	slots     []uint32       // free slots of the counters
	counters  *worker.Counters
}

func newTable(slots int, c *worker.Counters) *table {
	t := &table{counters: c, volumes: make(map[string]*volume), releasing: make(map[uint32]*release), leftovers: make(map[uint32]int)}
	for i := slots - 1; i >= 0; i-- {
		t.slots = append(t.slots, uint32(i))
	}
	return t
}

// errBusy marks a volume that another operation holds.
var errBusy = errors.New("operation under way")

// begin takes the volume for an operation. A volume that is not there is made
// if create is set; otherwise nil is returned. An error matches errBusy and
// names the operation that holds it.
func (t *table) begin(id, op string, create bool) (*volume, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.volumes[id]
	switch {
	case v == nil && !create:
		return nil, nil
	case v == nil:
		v = &volume{state: serverv1.Device_ATTACHING}
		v.entry.Volume = id
		t.volumes[id] = v
	case v.op != "":
		return v, fmt.Errorf("%s volume %s: %s: %w", op, id, v.op, errBusy)
	}
	v.op = op
	return v, nil
}

// takeOver takes a volume from its recovery, which the caller must end. It
// returns nil if the volume is not being recovered.
func (t *table) takeOver(id, op string) (*volume, *recovery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.volumes[id]
	if v == nil || v.op != opRecover {
		return nil, nil
	}
	v.op = op
	return v, v.recovery
}

// end gives the volume back, if op still holds it. One whose worker was lost
// meanwhile is taken again, for the recovery that is returned.
func (t *table) end(v *volume, op string) *recovery {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.op != op {
		return nil
	}
	v.op, v.recovery = "", nil
	return t.takeForRecovery(v)
}

// takeForRecovery takes a volume that a user has and no worker serves, unless it
// is held.
func (t *table) takeForRecovery(v *volume) *recovery {
	if t.volumes[v.entry.Volume] != v || v.op != "" {
		return nil
	}
	// A recovery that was ended may have named its worker already.
	if v.state != serverv1.Device_RECOVERING && v.worker != nil && !v.worker.isLost() {
		return nil
	}
	// One that lost a flush is served, too: EIO is better than no answer.
	if v.state != serverv1.Device_LIVE && v.state != serverv1.Device_RECOVERING && v.entry.Failure == "" {
		return nil
	}
	v.op, v.state, v.message = opRecover, serverv1.Device_RECOVERING, "the worker is gone"
	v.recovery = newRecovery(v)
	return v.recovery
}

// orphaned takes all volumes of a lost worker that no operation holds, busy
// ones first.
func (t *table) orphaned() []*recovery {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*recovery
	for _, v := range t.volumes {
		if r := t.takeForRecovery(v); r != nil {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *recovery) int { return cmp.Compare(b.volume.recentOps, a.volume.recentOps) })
	return list
}

// fail marks the volumes of a device as failed for good, and returns their
// entries. Their recoveries end, and so does the release of a device that had the number.
func (t *table) fail(device uint32, message string) (entries []entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.volumes {
		if v.entry.Device == device && v.journaled() && !v.vanished {
			entries = append(entries, v.entry)
			v.vanish(message)
			if v.recovery != nil {
				v.recovery.cancel()
			}
		}
	}
	if r := t.releasing[device]; r != nil {
		r.superseded = true
	}
	return entries
}

// journaled says whether a user has the volume, so that the journal has an entry
// of it; the caller holds the mutex.
func (v *volume) journaled() bool {
	return v.state != serverv1.Device_ATTACHING && v.state != serverv1.Device_DETACHING
}

// vanish marks a volume whose device is gone; the caller holds the mutex.
func (v *volume) vanish(message string) {
	v.vanished = true
	v.state, v.message, v.entry.Failure = serverv1.Device_FAILED, message, ""
}

// update changes a volume under the mutex.
func (t *table) update(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// entryOf returns the volume's entry as it is now.
func (t *table) entryOf(v *volume) entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return v.entry
}

// drop forgets a volume.
func (t *table) drop(v *volume) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.volumes[v.entry.Volume] == v {
		delete(t.volumes, v.entry.Volume)
	}
}

// noSlot is of a volume that is not served.
const noSlot = math.MaxUint32

// takeSlot reserves a slot of the counters; each device in existence has one.
func (t *table) takeSlot() (uint32, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.slots) == 0 {
		return 0, false
	}
	slot := t.slots[len(t.slots)-1]
	t.slots = t.slots[:len(t.slots)-1]
	return slot, true
}

func (t *table) freeSlot(slot uint32) {
	if slot == noSlot {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots = append(t.slots, slot)
}

// get returns the public form of a volume.
func (t *table) get(id string) (*serverv1.Device, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.volumes[id]
	if v == nil {
		return nil, false
	}
	return t.public(v), true
}

// list returns all volumes, sorted by id.
func (t *table) list() []*serverv1.Device {
	t.mu.Lock()
	list := make([]*serverv1.Device, 0, len(t.volumes))
	for _, v := range t.volumes {
		list = append(list, t.public(v))
	}
	t.mu.Unlock()
	slices.SortFunc(list, func(a, b *serverv1.Device) int { return cmp.Compare(a.VolumeId, b.VolumeId) })
	return list
}

// public is the API's form of a volume; the caller holds the mutex.
func (t *table) public(v *volume) *serverv1.Device {
	d := &serverv1.Device{
		VolumeId: v.entry.Volume, State: v.state, Message: v.message,
		BackingPath: v.entry.Path, SizeBytes: uint64(v.entry.SizeBytes), Limits: limitsMessage(v.entry.Limits),
		IoErrors: v.errors, DataLost: v.entry.Failure != "",
	}
	if c, err := t.counters.At(v.slot); err == nil {
		d.ThrottledNs = c.ThrottledNanos.Load()
	}
	if v.state != serverv1.Device_ATTACHING {
		d.DeviceId, d.Path, d.Major, d.Minor = v.info.ID, v.info.BlockPath(), v.major, v.minor
	}
	return d
}

// leftover counts a device that was left behind, and is known as such, until the
// function it returns is called.
func (t *table) leftover(id uint32) (done func()) {
	t.update(func() { t.leftovers[id]++ })
	return func() {
		t.update(func() {
			if t.leftovers[id]--; t.leftovers[id] == 0 {
				delete(t.leftovers, id)
			}
		})
	}
}

func (t *table) leftoverCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.leftovers)
}

// devices are the ids of all devices that volumes have or have had, until the kernel has
// let go of them, and of those that are being deleted.
func (t *table) devices() map[uint32]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := make(map[uint32]bool, len(t.volumes)+len(t.releasing))
	for _, v := range t.volumes {
		if !v.vanished {
			ids[v.info.ID] = true
		}
	}
	for id := range t.releasing {
		ids[id] = true
	}
	for id := range t.leftovers {
		ids[id] = true
	}
	return ids
}

func (t *table) attachedCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.volumes)
}

func (t *table) releasingCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.releasing)
}

func (t *table) recoveringCount() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.volumes {
		if v.state == serverv1.Device_RECOVERING {
			n++
		}
	}
	return n
}
