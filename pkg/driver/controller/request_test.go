package controller

import (
	"math"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

func mount(fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
	}
}

func block() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func withMode(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	c := mount("")
	c.AccessMode.Mode = mode
	return c
}

func TestParseCreateRefuses(t *testing.T) {
	cases := map[string]struct {
		change  func(*csi.CreateVolumeRequest)
		code    codes.Code
		message string
	}{
		"no name":                 {func(r *csi.CreateVolumeRequest) { r.Name = "" }, codes.InvalidArgument, "name is empty"},
		"a name of 129 bytes":     {func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("a", 129) }, codes.InvalidArgument, "128 are allowed"},
		"a control character":     {func(r *csi.CreateVolumeRequest) { r.Name = "a\x00b" }, codes.InvalidArgument, "control character"},
		"a C1 control character":  {func(r *csi.CreateVolumeRequest) { r.Name = "a\u0085b" }, codes.InvalidArgument, "control character"},
		"a name that is no UTF-8": {func(r *csi.CreateVolumeRequest) { r.Name = "a\xff" }, codes.InvalidArgument, "UTF-8"},
		"no capabilities":         {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil }, codes.InvalidArgument, "volume_capabilities is empty"},
		"neither block nor mount": {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessType = nil }, codes.InvalidArgument, "neither block nor mount"},
		"ReadWriteMany": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.InvalidArgument, "use ReadWriteOnce"},
		"an unknown file system": {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0] = mount("zfs") }, codes.InvalidArgument, `"zfs" is not a file system that this driver makes: use btrfs, ext4 or xfs`},
		"a source of no kind":    {func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }, codes.InvalidArgument, "volume_content_source names neither a snapshot nor a volume"},
		"a misspelt limit":       {func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"IOPS": "1"} }, codes.InvalidArgument, `mutable_parameters["IOPS"] is not a parameter of this driver that can change: the known ones are bandwidth, burst, iops`},
		"a pool that changes":    {func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"pool": "a"} }, codes.InvalidArgument, `mutable_parameters["pool"]`},
		"no limit":               {func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"iops": "many"} }, codes.InvalidArgument, `mutable_parameters["iops"] "many"`},
		"no limit in the class":  {func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"bandwidth": "fast"} }, codes.InvalidArgument, `parameters["bandwidth"] "fast"`},
		"a misspelt parameter":   {func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"pol": "a"} }, codes.InvalidArgument, `parameters["pol"] is not a parameter of this driver: the known ones are pool, queueDepth, queues, bandwidth, burst`},
		"no number of queues":    {func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"queues": "many"} }, codes.InvalidArgument, `parameters["queues"] "many" is not a number from 1 to 32`},
		"too many queues":        {func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"queues": "33"} }, codes.InvalidArgument, "from 1 to 32"},
		"a pool that is a path":  {func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"pool": "../x"} }, codes.InvalidArgument, "not a pool's name"},
		"a foreign topology": {func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}}
		}, codes.InvalidArgument, driver.TopologyKey},
		"a negative size":           {size(-1, 0), codes.InvalidArgument, "negative"},
		"a limit below the request": {size(2*mib, mib), codes.InvalidArgument, "limits"},
		"an ext4 that is too small": {size(16*mib-1, 0), codes.OutOfRange, "at least 16777216 bytes"},
		"an xfs that is too small":  {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0] = mount("xfs"); size(299*mib, 0)(r) }, codes.OutOfRange, "at least 314572800 bytes"},
		"a limit below the least":   {size(0, mib), codes.OutOfRange, "at least 16777216 bytes"},
		"no whole MiB in the range": {size(16*mib+1, 16*mib+4096), codes.OutOfRange, "no whole number of MiB"},
		"a size that overflows":     {size(math.MaxInt64, 0), codes.OutOfRange, "no whole number of MiB"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{mount("")}}
			c.change(r)
			_, err := parseCreate(r)
			if driver.Code(err) != c.code || !strings.Contains(err.Error(), c.message) {
				t.Errorf("got %v, want %v with %q", err, c.code, c.message)
			}
		})
	}
}

func size(required, limit int64) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) {
		r.CapacityRange = &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
	}
}

func TestParseCreateAccepts(t *testing.T) {
	cases := map[string]struct {
		change func(*csi.CreateVolumeRequest)
		bytes  int64
		params params
	}{
		"nothing but a name: 1 GiB in pool default": {func(*csi.CreateVolumeRequest) {}, 1 << 30, params{"default", 1, 64}},
		"the size is rounded up to a MiB":           {size(100*mib+1, 0), 101 * mib, params{"default", 1, 64}},
		"a whole MiB stays":                         {size(100*mib, 100*mib), 100 * mib, params{"default", 1, 64}},
		"a limit alone bounds the default":          {size(0, 100*mib+5), 100 * mib, params{"default", 1, 64}},
		"an xfs of 300 MiB":                         {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0] = mount("xfs"); size(300*mib, 0)(r) }, 300 * mib, params{"default", 1, 64}},
		"a block volume of one byte has a MiB":      {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0] = block(); size(mib, 0)(r) }, mib, params{"default", 1, 64}},
		"a reader": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = withMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)
		}, 1 << 30, params{"default", 1, 64}},
		"all parameters, and those of the sidecars": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"pool": "fast", "queues": "4", "queueDepth": "128", "csi.storage.k8s.io/pvc/name": "x"}
		}, 1 << 30, params{"fast", 4, 128}},
		"128 bytes of any Unicode": {func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("デ", 42) + "\t\n" }, 1 << 30, params{"default", 1, 64}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{mount("")}}
			c.change(r)
			got, err := parseCreate(r)
			if err != nil || got.bytes != c.bytes || got.params != c.params {
				t.Errorf("got %d bytes, %+v, %v; want %d, %+v", got.bytes, got.params, err, c.bytes, c.params)
			}
		})
	}
}

func TestLimitsOfANewVolume(t *testing.T) {
	r := &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{mount("")},
		Parameters:        map[string]string{"iops": "100", "bandwidth": "10Mi"},
		MutableParameters: map[string]string{"iops": "200", "readIOPS": "50", "csi.storage.k8s.io/pvc/name": "x"}}
	got, err := parseCreate(r)
	if want := (v1alpha1.VolumeLimits{IOPS: 200, ReadIOPS: 50, Bandwidth: 10 * mib}); err != nil || got.limits != want {
		t.Errorf("%+v, %v; want %+v", got.limits, err, want)
	}
}

// FuzzVolumeBytes: whatever the range, the size is in it, or refused.
func FuzzVolumeBytes(f *testing.F) {
	f.Add(int64(1), int64(0), int64(1))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), mib)
	f.Fuzz(func(t *testing.T, required, limit, least int64) {
		if least < mib || least > 1<<40 {
			return
		}
		got, err := volumeBytes(&csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}, least)
		if err == nil && (got < required || limit > 0 && got > limit || got < least || got%mib != 0) {
			t.Errorf("range %d to %d, least %d: %d bytes", required, limit, least, got)
		}
	})
}
