package snapshot

import "testing"

func TestPlan(t *testing.T) {
	good := func(change func(*observation)) observation {
		o := observation{finalizer: true, cut: true, file: true}
		change(&o)
		return o
	}
	for name, c := range map[string]struct {
		o      observation
		verb   verb
		reason string
	}{
		"all is as it should be":                                {good(func(*observation) {}), ready, "Cut"},
		"a new object gets the finalizer before it gets a file": {observation{}, adopt, ""},
		"a new snapshot is cut":                                 {observation{finalizer: true}, cutNow, ""},
		"a cut that never reported is not cut again":            {good(func(o *observation) { o.cut = false }), ready, "Cut"},
		"a file that was lost is not cut anew":                  {good(func(o *observation) { o.file = false }), notReady, "FileMissing"},
		"a pool that is not configured":                         {good(func(o *observation) { o.pool = poolMissing }), notReady, "PoolMissing"},
		"a pool that failed says nothing about the file":        {good(func(o *observation) { o.pool, o.file = poolFailed, false }), notReady, "PoolFailed"},
		"deleted: the file goes first":                          {good(func(o *observation) { o.deleting = true }), remove, ""},
		"deleted, and the file is gone":                         {good(func(o *observation) { o.deleting, o.file = true, false }), release, ""},
		"deleted before it was cut: it never is":                {observation{finalizer: true, deleting: true}, release, ""},
		"deleted, and the pool can't be reached: kept":          {good(func(o *observation) { o.deleting, o.pool = true, poolFailed }), notReady, "PoolFailed"},
		"one of a group that is not cut yet, file or not":       {good(func(o *observation) { o.cut, o.waits = false, true }), wait, ""},
		"one of a group that was cut, and its file is gone":     {good(func(o *observation) { o.cut, o.follows, o.file = false, true, false }), notReady, "FileMissing"},
		"deleted while it waits for its group":                  {observation{finalizer: true, deleting: true, waits: true}, release, ""},
		"released already":                                      {observation{deleting: true}, ignore, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := plan(c.o); got.verb != c.verb || got.reason != c.reason {
				t.Errorf("plan(%+v) = %+v, want %s %s", c.o, got, c.verb, c.reason)
			}
		})
	}
}
