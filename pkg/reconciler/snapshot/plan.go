package snapshot

// poolState says whether the snapshot's pool can be used.
type poolState int

const (
	poolOpen    poolState = iota
	poolMissing           // the node has no pool of that name
	poolFailed            // it has, and it does not work now
)

// An observation is all that a decision needs.
type observation struct {
	finalizer   bool // ours is on the object
	deleting    bool // it has a deletion timestamp
	cut         bool // the status says when it was cut
	follows     bool // another one of its group cuts it
	waits       bool // and has still to do that
	pool        poolState
	poolMessage string
	file        bool
}

// verb is what to do next.
type verb string

const (
	ignore   verb = "ignore"   // nothing, until the object changes
	adopt    verb = "adopt"    // put the finalizer on
	wait     verb = "wait"     // for another one of the group
	cutNow   verb = "cut"      // copy the volume
	ready    verb = "ready"    // report that all is as it should be
	notReady verb = "notReady" // report why it is not, and look again
	remove   verb = "remove"   // move the file to the trash
	release  verb = "release"  // take the finalizer off
)

// A step is a verb and, for the condition, why.
type step struct {
	verb    verb
	reason  string
	message string
}

// plan is the whole policy. It is pure; its table test is the specification.
func plan(o observation) step {
	switch {
	case !o.finalizer && o.deleting:
		return step{verb: ignore} // released already
	case !o.finalizer:
		return step{verb: adopt}
	case o.pool == poolMissing:
		return step{notReady, reasonPoolMissing, o.poolMessage}
	case o.pool == poolFailed:
		return step{notReady, reasonPoolFailed, o.poolMessage}
	case o.deleting && o.file:
		return step{verb: remove}
	case o.deleting:
		return step{verb: release}
	case o.waits:
		return step{verb: wait}
	case o.file:
		return step{ready, "Cut", "the snapshot's file exists and is durable"}
	case o.cut, o.follows:
		return step{notReady, reasonFileMissing, "the snapshot's file was there and is gone. It is not cut anew, since the volume has changed; restore the file, or delete the snapshot"}
	}
	return step{verb: cutNow}
}
