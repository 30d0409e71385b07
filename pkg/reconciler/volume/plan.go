package volume

import (
	"fmt"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// poolState says whether the volume's pool can be used.
type poolState int

const (
	poolOpen    poolState = iota
	poolMissing           // the node has no pool of that name
	poolFailed            // it has, and it does not work now
)

// use says whether somebody has the volume's device.
type use int

const (
	unused use = iota
	inUse
	unknown // the device server can't be asked
)

// An observation is all that a decision needs.
type observation struct {
	// The object.
	finalizer bool // ours is on it
	deleting  bool // it has a deletion timestamp
	absent    bool // spec.state is Absent
	wantBytes int64
	created   bool // condition Created: the file was made once
	refused   bool // condition InUse is True, given at this generation
	// growthRefused is what condition Ready says, at this generation, of a growth that
	// the pool had no room for; "" if it says no such thing.
	growthRefused  string
	reportedBytes  int64 // status.capacityBytes
	wantLimits     pool.Limits
	reportedLimits pool.Limits
	// The node.
	pool        poolState
	poolMessage string
	file        bool
	fileBytes   int64
	use         use   // looked at unless the volume is new
	deviceBytes int64 // if in use, as what follows
	// The limits that are remembered beside the file, and those that are in force.
	storedLimits, deviceLimits pool.Limits
	throttled                  time.Duration
}

// verb is what to do next.
type verb string

const (
	ignore   verb = "ignore"   // nothing, until the object changes
	adopt    verb = "adopt"    // put the finalizer on
	create   verb = "create"   // make the file
	grow     verb = "grow"     // make the file larger
	resize   verb = "resize"   // make the device as large as the file
	remember verb = "remember" // note the limits beside the file
	throttle verb = "throttle" // put the limits in force
	retry    verb = "retry"    // nothing yet: look again soon
	ready    verb = "ready"    // report that all is as it should be
	notReady verb = "notReady" // report why it is not, and look again
	refuse   verb = "refuse"   // answer that the volume is in use, and keep it
	wait     verb = "wait"     // report the same, and remove it once it is free
	remove   verb = "remove"   // move the file to the trash
	release  verb = "release"  // take the finalizer off
)

// A step is a verb and, for a condition, why.
type step struct {
	verb    verb
	reason  string
	message string
}

// plan is the whole policy. It is pure; its table test is the specification.
func plan(o observation) step {
	switch {
	case !o.finalizer && (o.deleting || o.absent):
		return step{verb: ignore} // released already
	case !o.finalizer:
		return step{verb: adopt}
	case o.deleting || o.absent:
		return planRemoval(o)
	}
	return planPresence(o)
}

func planRemoval(o observation) step {
	// A deletion is final: it waits for the user. The question of spec.state is
	// answered at once, and once a generation: who asked may have given up
	// because of it, and put the volume back into service.
	asked := !o.deleting
	switch {
	case asked && o.refused:
		return step{verb: ignore}
	case o.use == unknown:
		return step{notReady, reasonServer, "the device server does not answer, so nobody knows whether the volume is in use"}
	case o.use == inUse && asked:
		return step{refuse, "Attached", "the volume is attached; nothing was removed"}
	case o.use == inUse:
		return step{wait, "Attached", "the volume is attached; it is removed when it is no longer"}
	case o.pool != poolOpen:
		return poolProblem(o)
	case o.file:
		return step{verb: remove}
	}
	return step{verb: release}
}

func planPresence(o observation) step {
	switch {
	case o.pool != poolOpen:
		return poolProblem(o)
	case !o.file && o.created:
		return step{notReady, reasonFileMissing, "the volume's file was there and is gone: its data is lost or elsewhere. An empty one is not put in its place; restore the file, or delete the volume"}
	case !o.file:
		return step{verb: create}
	// Before a volume is ready: it may be staged at once.
	case o.storedLimits != o.wantLimits:
		return step{verb: remember}
	case o.use == inUse && o.deviceLimits != o.wantLimits:
		return step{verb: throttle}
	}
	return planSize(o)
}

func planSize(o observation) step {
	switch {
	case o.fileBytes > o.wantBytes:
		return step{notReady, reasonFileSize, fmt.Sprintf("the file has %d bytes and spec.capacityBytes is %d: a volume is never made smaller; set spec.capacityBytes to what the file has", o.fileBytes, o.wantBytes)}
	case o.fileBytes < o.wantBytes && o.growthRefused != "":
		return step{ready, reasonPoolFull, o.growthRefused}
	case o.fileBytes < o.wantBytes:
		return step{verb: grow}
	case o.use == inUse && o.deviceBytes < o.fileBytes:
		return step{verb: resize}
	case o.use == unknown && (o.reportedBytes != o.fileBytes || o.reportedLimits != o.wantLimits):
		return step{verb: retry} // whether there is a device that has to change too
	}
	return step{ready, "Created", "the file exists with its full size"}
}

func poolProblem(o observation) step {
	if o.pool == poolMissing {
		return step{notReady, reasonPoolMissing, o.poolMessage}
	}
	return step{notReady, reasonPoolFailed, o.poolMessage}
}
