package node

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/driver/health"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// TestVolumeWatch lets one volume go through what can happen to a device, and looks at what
// is said of it and whether somebody is told.
func TestVolumeWatch(t *testing.T) {
	w := &VolumeWatch{}
	now := time.Now()
	live := client.Device{VolumeID: "v", DeviceID: 1, State: client.Live}
	with := func(change func(*client.Device)) []client.Device {
		d := live
		change(&d)
		return []client.Device{d, {VolumeID: "other", DeviceID: 2, State: client.Live}}
	}
	for _, step := range []struct {
		name    string
		after   time.Duration
		devices []client.Device
		reasons []health.Reason
		told    bool
	}{
		{name: "live", devices: with(func(*client.Device) {})},
		{name: "recovering for a moment", devices: with(func(d *client.Device) { d.State = client.Recovering })},
		{name: "still recovering", devices: with(func(d *client.Device) { d.State = client.Recovering }), reasons: []health.Reason{health.Recovering}, told: true},
		{name: "live again", devices: with(func(*client.Device) {}), told: true},
		{name: "errors", devices: with(func(d *client.Device) { d.IOErrors = 3 }), reasons: []health.Reason{health.IOErrors}, told: true},
		{name: "no more errors", devices: with(func(d *client.Device) { d.IOErrors = 3 }), reasons: []health.Reason{health.IOErrors}},
		{name: "a flush was lost", devices: with(func(d *client.Device) { d.IOErrors, d.DataLost, d.State = 4, true, client.Failed }), reasons: []health.Reason{health.FlushLost, health.IOErrors}, told: true},
		{name: "attached again", devices: with(func(d *client.Device) { d.DeviceID = 9 }), told: true},
		{name: "failed", devices: with(func(d *client.Device) { d.DeviceID, d.State = 9, client.Failed }), reasons: []health.Reason{health.DeviceFailed}, told: true},
		{name: "detached", devices: []client.Device{{VolumeID: "other", DeviceID: 2}}, told: true},
	} {
		now = now.Add(watchEvery)
		var told []string
		w.note(step.devices, now, func(id string) { told = append(told, id) })
		if slices.Contains(told, "v") != step.told || slices.Contains(told, "other") {
			t.Errorf("%s: told of %v", step.name, told)
		}
		var reasons []health.Reason
		for _, p := range w.seen["v"].problems(now) {
			reasons = append(reasons, p.Reason)
		}
		if !slices.Equal(reasons, step.reasons) {
			t.Errorf("%s: problems %v, want %v", step.name, reasons, step.reasons)
		}
	}
}

// TestOldErrorsPass pins that a volume counts as well again some time after its last error,
// and that somebody is told then.
func TestOldErrorsPass(t *testing.T) {
	w := &VolumeWatch{}
	start := time.Now()
	device := []client.Device{{VolumeID: "v", DeviceID: 1, State: client.Live, IOErrors: 1}}
	told := 0
	for at := time.Duration(0); at < troubleLasts+3*watchEvery; at += watchEvery {
		w.note(device, start.Add(at), func(string) { told++ })
	}
	if told != 2 {
		t.Errorf("told %d times, want at the error and at its end", told)
	}
	if p := w.seen["v"].problems(start.Add(troubleLasts + 3*watchEvery)); p != nil {
		t.Errorf("problems %v long after the last error", p)
	}
}

// TestServerAway pins that every volume in use is in trouble while the device server is
// away, and none any more when it is back.
func TestServerAway(t *testing.T) {
	w := &VolumeWatch{}
	device := []client.Device{{VolumeID: "v", DeviceID: 1, State: client.Live}}
	w.note(device, time.Now(), func(string) {})
	var told []string
	w.noteAway(context.DeadlineExceeded, func(id string) { told = append(told, id) })
	if p := w.Problems("v"); len(p) != 1 || p[0].Reason != health.ServerUnavailable || !slices.Equal(told, []string{"v"}) {
		t.Errorf("problems %v, told of %v", p, told)
	}
	told = nil
	w.note(device, time.Now(), func(id string) { told = append(told, id) })
	if p := w.Problems("v"); p != nil || !slices.Equal(told, []string{"v"}) {
		t.Errorf("back: problems %v, told of %v", p, told)
	}
}
