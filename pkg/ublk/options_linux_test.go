package ublk

import "testing"

func TestDeviceOptions(t *testing.T) {
	o, err := DeviceOptions{ID: -1}.withDefaults()
	if err != nil || o.Queues != 1 || o.Depth != 64 || o.MaxIOBytes != 512<<10 || o.Features != UserCopy {
		t.Errorf("defaults %+v, %v", o, err)
	}
	for name, o := range map[string]DeviceOptions{
		"a negative number":          {ID: -2},
		"a number beyond the last":   {ID: 1 << 20},
		"too many queues":            {Queues: 5000},
		"too deep":                   {Depth: 5000},
		"half a page":                {MaxIOBytes: 2048},
		"more than an offset can be": {MaxIOBytes: 64 << 20},
	} {
		if _, err := o.withDefaults(); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
