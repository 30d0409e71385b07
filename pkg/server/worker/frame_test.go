package worker

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

var allowUnexported = cmp.AllowUnexported(request{}, result{}, hello{})

func frameOf(k frameKind, n int, fill func([]byte) []byte) []byte {
	return endFrame(fill(beginFrame(nil, k)), n)
}

func body(t testing.TB, frame []byte) []byte {
	t.Helper()
	b, err := readFrame(bytes.NewReader(frame), nil)
	if err != nil {
		t.Fatalf("readFrame: %v", err)
	}
	return b
}

func TestRequestsSurviveTheWire(t *testing.T) {
	want := []request{
		{seq: 1, op: opAttach, device: 7, queues: 2, depth: 64, maxIOBytes: 1 << 19, features: 0x98, slot: 5,
			readOnly: true, fileDevice: 0x801, fileInode: 1 << 40,
			file: ublk.FileInfo{SizeBytes: 1 << 30, Direct: true, DirectOffsetBytes: 512, DirectMemoryBytes: 4, ZeroRange: true}, path: "/var/lib/csi-ublk/pools/p/volumes/v",
			limits: ublk.Limits{IOPS: 1, ReadIOPS: 2, WriteIOPS: 3, Bytes: 4, ReadBytes: 5, WriteBytes: 1 << 40, Burst: time.Second}},
		{seq: 2, op: opDrain, device: 7},
		{seq: 3, op: opHold, device: 7, waitMillis: 500, holdMillis: 3000},
		{seq: 4, op: opResume, device: 7},
		{seq: 5, op: opLimit, device: 7, limits: ublk.Limits{WriteBytes: 7}},
		{seq: 1 << 60, op: opClose, device: 1<<32 - 1},
	}
	got, err := decodeRequests(body(t, frameOf(frameRequests, len(want), func(b []byte) []byte {
		for i := range want {
			b = appendRequest(b, &want[i])
		}
		return b
	})))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, allowUnexported); d != "" {
		t.Errorf("requests changed on the wire (-want +got):\n%s", d)
	}
}

func TestResultsSurviveTheWireAndLongTextIsCut(t *testing.T) {
	in := []result{{seq: 3}, {seq: 4, errno: 16, text: strings.Repeat("x", maxTextBytes+10)}}
	want := []result{{seq: 3}, {seq: 4, errno: 16, text: strings.Repeat("x", maxTextBytes)}}
	got, err := decodeResults(body(t, frameOf(frameResults, len(in), func(b []byte) []byte {
		for i := range in {
			b = appendResult(b, &in[i])
		}
		return b
	})))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, allowUnexported); d != "" {
		t.Errorf("results changed on the wire (-want +got):\n%s", d)
	}
}

func TestMalformedFramesAreRefused(t *testing.T) {
	good := frameOf(frameRequests, 1, func(b []byte) []byte {
		return appendRequest(b, &request{op: opAttach, path: "/p"})
	})
	for name, frame := range map[string][]byte{
		"a length of nothing":           {0, 0, 0, 0},
		"a length beyond the limit":     {0, 0, 0xff, 0xff, 2, 0, 0},
		"an unknown kind":               frameOf(9, 0, func(b []byte) []byte { return b }),
		"an unknown operation":          frameOf(frameRequests, 1, func(b []byte) []byte { return appendRequest(b, &request{op: 99}) }),
		"more messages announced":       endFrame(bytes.Clone(good), 2),
		"bytes behind the last message": endFrame(append(bytes.Clone(good), 0), 1),
		"a batch beyond the limit":      endFrame(bytes.Clone(good), maxBatch+1),
	} {
		t.Run(name, func(t *testing.T) {
			b, err := readFrame(bytes.NewReader(frame), nil)
			if err == nil {
				_, err = decodeRequests(b)
			}
			if !errors.Is(err, errFrame) {
				t.Errorf("error %v, want one that matches errFrame", err)
			}
		})
	}
}

func FuzzDecodeRequests(f *testing.F) {
	f.Add(frameOf(frameRequests, 1, func(b []byte) []byte {
		return appendRequest(b, &request{seq: 1, op: opAttach, device: 3, path: "/p"})
	})[4:])
	f.Add(frameOf(frameRequests, 1, func(b []byte) []byte { return appendRequest(b, &request{op: opDrain}) })[4:])
	f.Add(frameOf(frameRequests, 1, func(b []byte) []byte { return appendRequest(b, &request{op: opHold, holdMillis: 9}) })[4:])
	f.Add(frameOf(frameRequests, 1, func(b []byte) []byte {
		return appendRequest(b, &request{op: opLimit, limits: ublk.Limits{IOPS: 5, Burst: time.Second}})
	})[4:])
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := decodeRequests(b)
		if err != nil {
			return
		}
		again := frameOf(frameRequests, len(list), func(b []byte) []byte {
			for i := range list {
				b = appendRequest(b, &list[i])
			}
			return b
		})[4:]
		if !bytes.Equal(b, again) {
			t.Errorf("a frame that was accepted encodes differently:\n%x\n%x", b, again)
		}
	})
}

func FuzzDecodeResults(f *testing.F) {
	f.Add(frameOf(frameResults, 1, func(b []byte) []byte { return appendResult(b, &result{seq: 1, errno: 5, text: "x"}) })[4:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if list, err := decodeResults(b); err == nil && len(list) > maxBatch {
			t.Errorf("%d results in one frame", len(list))
		}
	})
}
