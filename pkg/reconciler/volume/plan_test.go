package volume

import (
	"strings"
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

func TestPlan(t *testing.T) {
	const full = 1 << 20
	some := pool.Limits{IOPS: 1}
	// A volume as it should be; each row says what differs.
	good := func(change func(*observation)) observation {
		o := observation{finalizer: true, wantBytes: full, created: true, file: true, fileBytes: full, reportedBytes: full}
		change(&o)
		return o
	}
	for name, c := range map[string]struct {
		o      observation
		verb   verb
		reason string
		says   string
	}{
		"all is as it should be":                                {good(func(*observation) {}), ready, "Created", ""},
		"a new object gets the finalizer before it gets a file": {good(func(o *observation) { *o = observation{wantBytes: full} }), adopt, "", ""},
		"a new volume is made":                                  {good(func(o *observation) { o.created, o.file = false, false }), create, "", ""},
		"a file made by a call that never reported is taken":    {good(func(o *observation) { o.created = false }), ready, "Created", ""},
		"a file that was lost is not replaced by an empty one":  {good(func(o *observation) { o.file = false }), notReady, "FileMissing", "data is lost"},
		"a file that is too large is not touched":               {good(func(o *observation) { o.wantBytes /= 2 }), notReady, "FileSize", "never made smaller"},
		"a file that is too small grows":                        {good(func(o *observation) { o.wantBytes *= 2 }), grow, "", ""},
		"it grows under a user too":                             {good(func(o *observation) { o.wantBytes *= 2; o.use, o.deviceBytes = inUse, full }), grow, "", ""},
		"and without an answer of the device server":            {good(func(o *observation) { o.wantBytes *= 2; o.use = unknown }), grow, "", ""},
		"a growth without room is not tried again":              {good(func(o *observation) { o.wantBytes *= 2; o.growthRefused = "full" }), ready, "PoolFull", "full"},
		"a refusal does not matter once the size is right":      {good(func(o *observation) { o.growthRefused = "full" }), ready, "Created", ""},
		"limits are noted before a new volume is ready":         {good(func(o *observation) { o.created = false; o.wantLimits = some }), remember, "", ""},
		"new limits are noted first":                            {good(func(o *observation) { o.wantLimits, o.use = some, inUse }), remember, "", ""},
		"and then put in force":                                 {good(func(o *observation) { o.wantLimits, o.storedLimits, o.use = some, some, inUse }), throttle, "", ""},
		"limits that are in force are left alone": {good(func(o *observation) {
			o.wantLimits, o.storedLimits, o.deviceLimits, o.use, o.deviceBytes = some, some, some, inUse, full
		}), ready, "Created", ""},
		"limits of a volume that nobody uses need noting only":     {good(func(o *observation) { o.wantLimits, o.storedLimits = some, some }), ready, "Created", ""},
		"limits that are taken away":                               {good(func(o *observation) { o.storedLimits, o.deviceLimits, o.use = some, some, inUse }), remember, "", ""},
		"limits are not reported while the device is not known":    {good(func(o *observation) { o.wantLimits, o.storedLimits, o.use = some, some, unknown }), retry, "", ""},
		"limits of a volume that can't grow":                       {good(func(o *observation) { o.wantBytes *= 2; o.growthRefused, o.wantLimits = "full", some }), remember, "", ""},
		"a device smaller than the file grows":                     {good(func(o *observation) { o.use, o.deviceBytes = inUse, full/2 }), resize, "", ""},
		"a device as large as the file is left alone":              {good(func(o *observation) { o.use, o.deviceBytes = inUse, full }), ready, "Created", ""},
		"a growth is not reported while the device is not known":   {good(func(o *observation) { o.use, o.reportedBytes = unknown, full/2 }), retry, "", ""},
		"a volume that was lost does not grow":                     {good(func(o *observation) { o.file, o.wantBytes = false, 2*full }), notReady, "FileMissing", ""},
		"a volume that is to go does not grow":                     {good(func(o *observation) { o.absent, o.wantBytes = true, 2*full }), remove, "", ""},
		"a pool that is not configured":                            {good(func(o *observation) { o.pool, o.poolMessage = poolMissing, "no such pool" }), notReady, "PoolMissing", "no such pool"},
		"a pool that failed says nothing about the file":           {good(func(o *observation) { o.pool, o.file = poolFailed, false }), notReady, "PoolFailed", ""},
		"presence needs no answer of the device server":            {good(func(o *observation) { o.use = unknown }), ready, "Created", ""},
		"asked to go, and free: the file goes first":               {good(func(o *observation) { o.absent = true }), remove, "", ""},
		"asked to go, and the file is gone: the finalizer goes":    {good(func(o *observation) { o.absent, o.file = true, false }), release, "", ""},
		"asked to go, and in use: refused, nothing removed":        {good(func(o *observation) { o.absent, o.use = true, inUse }), refuse, "Attached", "nothing was removed"},
		"a refusal stands for its generation, even if free by now": {good(func(o *observation) { o.absent, o.refused = true, true }), ignore, "", ""},
		"asked to go, and nobody knows whether it is in use":       {good(func(o *observation) { o.absent, o.use = true, unknown }), notReady, "ServerUnavailable", ""},
		"deleted, and in use: waits":                               {good(func(o *observation) { o.deleting, o.use = true, inUse }), wait, "Attached", "when it is no longer"},
		"deleted, and free":                                        {good(func(o *observation) { o.deleting = true }), remove, "", ""},
		"deleted after a refusal, and free":                        {good(func(o *observation) { o.deleting, o.absent, o.refused = true, true, true }), remove, "", ""},
		"deleted before it was ever made":                          {good(func(o *observation) { o.deleting, o.created, o.file = true, false, false }), release, "", ""},
		"deleted, and the pool can't be reached: kept":             {good(func(o *observation) { o.deleting, o.pool = true, poolFailed }), notReady, "PoolFailed", ""},
		"released already":                                         {good(func(o *observation) { o.deleting, o.finalizer = true, false }), ignore, "", ""},
		"asked to go and released: not adopted again":              {good(func(o *observation) { o.absent, o.finalizer = true, false }), ignore, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := plan(c.o)
			if got.verb != c.verb || got.reason != c.reason || !strings.Contains(got.message, c.says) {
				t.Errorf("plan(%+v) = %+v, want %s %s %q", c.o, got, c.verb, c.reason, c.says)
			}
		})
	}
}
