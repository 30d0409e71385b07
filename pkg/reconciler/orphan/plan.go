package orphan

// observed is all that the plan for a volume depends on.
type observed struct {
	node      bool // the Kubernetes node exists
	deleting  bool // the object has a deletion timestamp
	absent    bool // spec.state is Absent
	finalizer bool // the node did not confirm the end of the file
	marked    bool // the object is marked with NodeGone
}

type step int

const (
	nothing step = iota
	release      // drop the finalizer
	remove       // delete the object
	mark         // set Ready to False, reason NodeGone
)

// plan is the one next step for a volume.
func plan(o observed) step {
	switch {
	case o.absent && !o.deleting && (!o.finalizer || !o.node):
		return remove
	case o.node:
		return nothing // it is the node's own business
	case o.deleting && o.finalizer:
		return release
	case !o.deleting && !o.marked:
		return mark
	}
	return nothing
}
