package server

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

func TestPlan(t *testing.T) {
	const ourTag, otherTag = 1, 2
	at := func(volume string, device uint32) *entry {
		e := testEntry(volume)
		e.Device = device
		return e
	}
	ours := func(id uint32, s ublk.DeviceState) ublk.DeviceInfo {
		return ublk.DeviceInfo{ID: id, State: s, Owner: ourTag}
	}
	foreign := func(id uint32) ublk.DeviceInfo {
		return ublk.DeviceInfo{ID: id, State: ublk.StateLive, Owner: otherTag}
	}
	type (
		entries = []*entry
		devices = []ublk.DeviceInfo
	)
	for name, c := range map[string]struct {
		entries entries
		devices devices
		want    []string
	}{
		"nothing found, nothing done":                    {},
		"a live volume whose server died is recovered":   {entries{at("v", 3)}, devices{ours(3, ublk.StateQuiesced)}, []string{"recover v 3"}},
		"also if the kernel has not noticed yet":         {entries{at("v", 3)}, devices{ours(3, ublk.StateLive)}, []string{"recover v 3"}},
		"also if its I/O fails meanwhile":                {entries{at("v", 3)}, devices{ours(3, ublk.StateFailIO)}, []string{"recover v 3"}},
		"a live volume whose device was stopped is gone": {entries{at("v", 3)}, devices{ours(3, ublk.StateDead)}, []string{"delete v 3"}},
		"a live volume without a device is dropped":      {entries{at("v", 3)}, nil, []string{"drop v"}},
		"a foreign device under our id is not touched":   {entries{at("v", 3)}, devices{foreign(3)}, []string{"drop v"}},
		"foreign devices get no step":                    {nil, devices{foreign(1), foreign(2)}, nil},
		"a device that nobody was given is deleted":      {nil, devices{ours(3, ublk.StateLive)}, []string{"delete 3"}},
		"our device in no entry is deleted":              {nil, devices{ours(5, ublk.StateQuiesced), foreign(6)}, []string{"delete 5"}},
		"a device that does not answer keeps its entry":  {entries{at("v", 9)}, nil, []string{"report v 9"}},
		"two volumes of one device are not guessed":      {entries{at("a", 3), at("b", 3)}, devices{ours(3, ublk.StateQuiesced)}, []string{"report a 3", "report b 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range plan(observation{tag: ourTag, entries: c.entries, devices: c.devices, silent: []uint32{9}}) {
				text := string(s.verb)
				if s.entry != nil {
					text += " " + s.entry.Volume
				}
				if s.device != nil {
					text += fmt.Sprintf(" %d", s.device.ID)
				}
				if s.reason == "" {
					t.Errorf("%s: no reason", text)
				}
				got = append(got, text)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("plan (-want +got):\n%s", d)
			}
		})
	}
}
