package node

import (
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/limits"
	"google.golang.org/grpc/codes"
)

func TestAttributesOfInlineVolumes(t *testing.T) {
	type attrs = map[string]string
	for name, c := range map[string]struct {
		given attrs
		want  ephemeralOptions // zero: refused
	}{
		"none":                   {attrs{}, ephemeralOptions{deviceOptions: deviceOptions{pool: "default"}, bytes: 1 << 30}},
		"kubelet's are not ours": {attrs{"csi.storage.k8s.io/pod.name": "p"}, ephemeralOptions{deviceOptions: deviceOptions{pool: "default"}, bytes: 1 << 30}},
		"all":                    {attrs{"size": "2Gi", "pool": "fast", "queues": "2", "queueDepth": "128"}, ephemeralOptions{deviceOptions: deviceOptions{"fast", 2, 128}, bytes: 2 << 30}},
		"a size is rounded up":   {attrs{"size": "1"}, ephemeralOptions{deviceOptions: deviceOptions{pool: "default"}, bytes: 1 << 20}},
		"limits": {attrs{"iops": "100", "writeBandwidth": "1Mi", "burst": "1s"}, ephemeralOptions{deviceOptions: deviceOptions{pool: "default"}, bytes: 1 << 30,
			limits: limits.Limits{IOPS: 100, WriteBandwidth: 1 << 20, BurstMillis: 1000}}},
		"a limit that is none":       {given: attrs{"iops": "many"}},
		"a size of nothing":          {given: attrs{"size": "0"}},
		"a size below nothing":       {given: attrs{"size": "-1"}},
		"a size that is none":        {given: attrs{"size": "big"}},
		"a size that overflows":      {given: attrs{"size": "9223372036854775807"}},
		"an attribute misspelt":      {given: attrs{"sise": "1Gi"}},
		"a number that is none":      {given: attrs{"queues": "-1"}},
		"a number that is too high":  {given: attrs{"queueDepth": "1025"}},
		"more queues than there are": {given: attrs{"queues": "33"}},
		"no queues":                  {given: attrs{"queues": "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseEphemeral(c.given)
			if c.want == (ephemeralOptions{}) {
				if driver.Code(err) != codes.InvalidArgument {
					t.Errorf("read as %+v (%v), want it refused", got, err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("read as %+v (%v), want %+v", got, err, c.want)
			}
		})
	}
}
