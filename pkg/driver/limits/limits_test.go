package limits

import (
	"fmt"
	"strings"
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"google.golang.org/grpc/codes"
)

func field(key string) string { return fmt.Sprintf("mutable_parameters[%q]", key) }

func TestApply(t *testing.T) {
	before := Limits{IOPS: 1, ReadIOPS: 2, Bandwidth: 3, BurstMillis: 4}
	for name, c := range map[string]struct {
		given map[string]string
		want  Limits
	}{
		"nothing":                    {nil, before},
		"only what is said changes":  {map[string]string{"iops": "500"}, Limits{IOPS: 500, ReadIOPS: 2, Bandwidth: 3, BurstMillis: 4}},
		"0 takes a limit away":       {map[string]string{"readIOPS": "0", "bandwidth": "0", "burst": "0s"}, Limits{IOPS: 1}},
		"keys of others are skipped": {map[string]string{"pool": "x"}, before},
		"all": {
			map[string]string{"iops": "1000", "readIOPS": "600", "writeIOPS": " 400 ", "bandwidth": "100Mi", "readBandwidth": "1.5Gi", "writeBandwidth": "20M", "burst": "1.5s"},
			Limits{IOPS: 1000, ReadIOPS: 600, WriteIOPS: 400, Bandwidth: 100 << 20, ReadBandwidth: 3 << 29, WriteBandwidth: 20e6, BurstMillis: 1500},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := before
			if err := Apply(&got, c.given, field); err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestApplyRefuses(t *testing.T) {
	for _, c := range []struct{ key, value, says string }{
		{"iops", "", "whole number"}, {"iops", "-1", "whole number"}, {"iops", "1k", "whole number"}, {"iops", "1.5", "whole number"}, {"writeIOPS", "99999999999999999999", "whole number"},
		{"bandwidth", "", "100Mi"}, {"bandwidth", "fast", "100Mi"}, {"bandwidth", "-1Mi", "100Mi"}, {"readBandwidth", "100m", "100Mi"}, {"bandwidth", "100", "1Mi a second or more"}, {"writeBandwidth", "1M", "1Mi a second"}, {"iops", "9", "10 requests a second or more"}, {"bandwidth", "100Ei", "100Mi"}, {"bandwidth", "10MB", "100Mi"},
		{"burst", "", "up to 1m"}, {"burst", "1", "up to 1m"}, {"burst", "61s", "up to 1m"}, {"burst", "-1s", "up to 1m"}, {"burst", "1us", "whole milliseconds"},
	} {
		before := Limits{ReadIOPS: 2}
		got := before
		err := Apply(&got, map[string]string{c.key: c.value, "readIOPS": "50"}, field)
		if driver.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), field(c.key)) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %q: %v, want %q", c.key, c.value, err, c.says)
		}
		if got != before {
			t.Errorf("%s %q: %+v was applied", c.key, c.value, got)
		}
	}
}
