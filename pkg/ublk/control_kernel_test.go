//go:build ublk && linux

package ublk

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/ublk/internal/sys"
)

// control opens the real driver. A machine without it fails the tests: what
// they prove is proven by nothing else.
func control(t testing.TB) *Control {
	t.Helper()
	c, err := OpenControl(ControlOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func ctxFor(t testing.TB) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(stop)
	return ctx
}

func add(t testing.TB, c *Control, o DeviceOptions) DeviceInfo {
	t.Helper()
	info, err := c.Add(ctxFor(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Delete(ctxFor(t), info.ID); err != nil && !errors.Is(err, unix.ENODEV) {
			t.Error(err)
		}
	})
	return info
}

func TestKernelOffersWhatTheServerNeeds(t *testing.T) {
	f := control(t).Features()
	t.Logf("features: %v", f)
	if err := f.Require(UserCopy | IoctlEncoding | UserRecovery | UserRecoveryReissue); err != nil {
		t.Error(err)
	}
	if err := f.Require(1 << 62); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a feature nobody has: %v", err)
	}
}

func TestDeviceInfoReadsBackWhatAddWrote(t *testing.T) {
	c := control(t)
	ctx := ctxFor(t)
	want := DeviceInfo{
		ID: 777, Queues: 1, Depth: 33, State: StateDead, MaxIOBytes: 256 << 10, Pid: -1,
		Features: UserCopy | UserRecovery | UserRecoveryReissue, Owner: 0x1122334455667788,
	}
	got := add(t, c, DeviceOptions{
		ID: 777, Queues: 1, Depth: 33, MaxIOBytes: 256 << 10, Owner: want.Owner,
		Features: want.Features,
	})
	if !got.Features.Has(want.Features) {
		t.Errorf("granted %v, want at least %v", got.Features, want.Features)
	}
	want.Features = got.Features
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("ADD_DEV (-want +got):\n%s", d)
	}
	got, err := c.Info(ctx, 777)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("GET_DEV_INFO (-want +got):\n%s", d)
	}
	// INFO2 carries the char device's path before the data: another use of
	// the same structures, with every field at work.
	var raw sys.DevInfo
	path := append([]byte(want.CharPath()), 0)
	in := append(path, bytesOf(&raw)...)
	if err := c.do(ctx, request{op: sys.GetDevInfo2, dev: 777, in: in, out: bytesOf(&raw), path: len(path)}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, infoOf(&raw)); d != "" {
		t.Errorf("GET_DEV_INFO2 (-want +got):\n%s", d)
	}
	if raw.OwnerUID != uint32(os.Getuid()) || raw.OwnerGID != uint32(os.Getgid()) {
		t.Errorf("owner %d:%d", raw.OwnerUID, raw.OwnerGID)
	}
	ids, err := Devices()
	if err != nil || len(ids) != 1 || ids[0] != 777 {
		t.Errorf("devices %v, %v", ids, err)
	}
	for id, want := range map[uint32]bool{777: true, 77: false} {
		if listed, err := Listed(id); err != nil || listed != want {
			t.Errorf("device %d listed: %t, %v; want %t", id, listed, err, want)
		}
	}
}

func TestParamsReadBackWhatSetWrote(t *testing.T) {
	c := control(t)
	info := add(t, c, DeviceOptions{ID: -1})
	want := Params{
		Sectors: 123456 * 8, LogicalBlockBytes: 1024, PhysicalBlockBytes: 4096, IOMinBytes: 8192, IOOptBytes: 65536,
		MaxSectors: 512, ReadOnly: true, Rotational: true, VolatileCache: true, FUA: true,
		DiscardGranularityBytes: 4096, MaxDiscardSectors: 1 << 20, MaxWriteZeroesSectors: 1 << 19,
	}
	if err := c.SetParams(ctxFor(t), info.ID, want); err != nil {
		t.Fatal(err)
	}
	got, err := c.Params(ctxFor(t), info.ID)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(info.CharPath(), &st); err != nil {
		t.Fatal(err)
	}
	want.CharMajor, want.CharMinor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestCommandsReachTheKernelsChecks(t *testing.T) {
	c := control(t)
	ctx := ctxFor(t)
	info := add(t, c, DeviceOptions{ID: -1})
	free := info.ID + 1
	for name, test := range map[string]struct {
		err  error
		want error
	}{
		"a device twice":                   {second(c.Add(ctx, DeviceOptions{ID: int(info.ID)})), unix.EEXIST},
		"a device that is not there":       {second(c.Info(ctx, free)), unix.ENODEV},
		"deleting what is not there":       {c.Delete(ctx, free), unix.ENODEV},
		"starting without parameters":      {c.Start(ctx, info.ID, os.Getpid()), unix.EINVAL},
		"recovering what never ran":        {c.StartRecovery(ctx, info.ID), unix.EINVAL},
		"a block larger than a page":       {c.SetParams(ctx, info.ID, Params{Sectors: 1 << 20, LogicalBlockBytes: 1 << 20}), unix.EINVAL},
		"a request larger than the device": {c.SetParams(ctx, info.ID, Params{Sectors: 1 << 20, MaxSectors: 1 << 20}), unix.EINVAL},
	} {
		var op *OpError
		if !errors.Is(test.err, test.want) || !errors.As(test.err, &op) {
			t.Errorf("%s: %v, want an OpError with %v", name, test.err, test.want)
		}
	}
	if err := c.Stop(ctx, info.ID); err != nil {
		t.Errorf("stopping a device that never started: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// A START_DEV that nobody serves waits; its caller must not, and nothing must
// be taken for broken.
func TestStartWaitsForFetchesAndCanBeCalledBack(t *testing.T) {
	c := control(t)
	info := add(t, c, DeviceOptions{ID: -1})
	if err := c.SetParams(ctxFor(t), info.ID, Params{Sectors: 2048}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	ctx, stop := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer stop()
	err := c.Start(ctx, info.ID, os.Getpid())
	if took := time.Since(begin); took < 200*time.Millisecond || took > 900*time.Millisecond {
		t.Errorf("START_DEV took %v", took)
	}
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrWedged) {
		t.Errorf("got %v, want a deadline and nothing wedged", err)
	}
	if n := len(c.slots); n != slotCount {
		t.Errorf("%d of %d slots free", n, slotCount)
	}
}

func TestCommandsOfManyGoroutinesRunAtOnce(t *testing.T) {
	c := control(t)
	const n = 16
	infos := make([]DeviceInfo, n)
	for i := range infos {
		infos[i] = add(t, c, DeviceOptions{ID: -1, Depth: 1})
		if err := c.SetParams(ctxFor(t), infos[i].ID, Params{Sectors: 2048}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer stop()
	errs := make(chan error, n)
	begin := time.Now()
	for _, info := range infos {
		go func() { errs <- c.Start(ctx, info.ID, os.Getpid()) }()
	}
	// All STARTs wait in the kernel now; yet others get through.
	if _, err := c.Info(ctxFor(t), infos[0].ID); err != nil {
		t.Error(err)
	}
	for range n {
		if err := <-errs; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	if took := time.Since(begin); took > 1200*time.Millisecond {
		t.Errorf("%d waiting commands took %v: one after the other?", n, took)
	}
}

// The probe must never promise more than the kernel keeps. The other way round
// a loaded machine may hide what the kernel can do, but not for long.
// UBLK_PROBES=50 asks for so many right answers in a row.
func TestDeleteKindIsTheKernels(t *testing.T) {
	c := control(t)
	want := os.Getenv("UBLK_EXPECT_KIND")
	if want == "" {
		t.Fatal("UBLK_EXPECT_KIND must say what this kernel is")
	}
	need, strict := 7, want != DeleteUnlocked.String()
	if !strict {
		need = 2
	}
	if n, err := strconv.Atoi(os.Getenv("UBLK_PROBES")); err == nil {
		need, strict = n, true
	}
	for end := time.Now().Add(30 * time.Second); need > 0; {
		begin := time.Now()
		kind, err := c.ProbeDeleteKind(ctxFor(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%v in %v", kind, time.Since(begin))
		switch {
		case kind.String() == want:
			need--
		case strict || kind != DeleteLocked:
			t.Fatalf("probed %v on a kernel that is %v", kind, want)
		case time.Now().After(end):
			t.Fatalf("no probe said %v", want)
		}
	}
	if ids, err := Devices(); err != nil || len(ids) != 0 {
		t.Errorf("the probe left %v, %v", ids, err)
	}
}

func TestControlPayloadsAreLargeEnough(t *testing.T) {
	if n := unsafe.Sizeof(sys.Params{}); n > slotBytes {
		t.Errorf("parameters of %d bytes in slots of %d", n, slotBytes)
	}
}

func TestReleasedTellsWhenANumberIsFree(t *testing.T) {
	c := control(t)
	info := add(t, c, DeviceOptions{ID: -1, Depth: 1})
	before, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Released(ctxFor(t), info.ID); got || err != nil {
		t.Errorf("added: %v, %v", got, err)
	}
	if err := c.Delete(ctxFor(t), info.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Released(ctxFor(t), info.ID); !got || err != nil {
		t.Errorf("deleted: %v, %v", got, err)
	}
	if after, err := Devices(); err != nil || len(after) != len(before)-1 {
		t.Errorf("asking made devices: %v, before the deletion %v (%v)", after, before, err)
	}
}
