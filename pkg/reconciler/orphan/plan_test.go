package orphan

import "testing"

func TestPlan(t *testing.T) {
	cases := map[string]struct {
		observed
		want step
	}{
		"a volume of a living node is the node's business": {observed{node: true, finalizer: true}, nothing},
		"its deletion too":                                          {observed{node: true, deleting: true, finalizer: true}, nothing},
		"a request to remove it waits for the node":                 {observed{node: true, absent: true, finalizer: true}, nothing},
		"removed by the node, object left over: goes":               {observed{node: true, absent: true}, remove},
		"being deleted already: nothing to add":                     {observed{node: true, absent: true, deleting: true}, nothing},
		"node vanished, volume wanted: marked":                      {observed{finalizer: true}, mark},
		"marked once only":                                          {observed{finalizer: true, marked: true}, nothing},
		"node vanished, removal requested: goes":                    {observed{absent: true, finalizer: true}, remove},
		"node vanished, removal requested, marked before: goes too": {observed{absent: true, finalizer: true, marked: true}, remove},
		"node vanished, being deleted: released":                    {observed{deleting: true, finalizer: true}, release},
		"node vanished, removal requested and deleted: released":    {observed{deleting: true, absent: true, finalizer: true}, release},
		"released and held by another finalizer: left alone":        {observed{deleting: true}, nothing},
		"never by us, node vanished, no finalizer: marked":          {observed{}, mark},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := plan(c.observed); got != c.want {
				t.Errorf("plan(%+v) = %v, want %v", c.observed, got, c.want)
			}
		})
	}
}
