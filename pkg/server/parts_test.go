package server

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
)

func TestTheOwnerIsMadeOnceAndDamageIsNoNewOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owner")
	a, err := loadOwner(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := loadOwner(path)
	if err != nil || a != b {
		t.Errorf("a second start has owner %+v (%v), want %+v", b, err, a)
	}
	if a.tag>>32 != tagMagic || uint32(a.tag) == 0 {
		t.Errorf("tag %#x, want magic %#x above a hash", a.tag, tagMagic)
	}
	other, err := loadOwner(filepath.Join(t.TempDir(), "owner"))
	if err != nil || other.tag == a.tag {
		t.Errorf("another directory has tag %#x (%v), want its own", other.tag, err)
	}
	if err := os.WriteFile(path, []byte("00ff"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadOwner(path); err == nil {
		t.Error("a damaged owner file was taken")
	}
}

func TestTurnsAreGrantedInTheOrderTheyWereTaken(t *testing.T) {
	turns := newTurns(1)
	first, second, third := turns.take(), turns.take(), turns.take()
	if err := first.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	second.done() // gives up without having waited
	if err := third.wait(shortly(t)); err == nil {
		t.Fatal("two at once")
	}
	first.done()
	first.done() // must not free a place twice
	if err := third.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := turns.take().wait(shortly(t)); err == nil {
		t.Error("two at once after a double done")
	}
}

func testCounters(t *testing.T) *worker.Counters {
	t.Helper()
	c, err := worker.NewCounters(4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestAVolumeHasOneOperationAndItIsNamed(t *testing.T) {
	tab := newTable(4, testCounters(t))
	if v, err := tab.begin("v", opDetach, false); v != nil || err != nil {
		t.Fatalf("a volume that is not there: %v, %v", v, err)
	}
	v, err := tab.begin("v", opAttach, true)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tab.begin("v", opDetach, false)
	if !errors.Is(err, errBusy) || err.Error() != "detach volume v: attach: operation under way" {
		t.Errorf("second operation: %v, want one that names the first", err)
	}
	if r := tab.end(v, opAttach); r != nil {
		t.Error("a volume that is not live is recovered")
	}
}

func TestAVolumeThatLostItsWorkerDuringAnOperationIsRecoveredAfterIt(t *testing.T) {
	tab := newTable(4, testCounters(t))
	v, err := tab.begin("v", opAttach, true)
	if err != nil {
		t.Fatal(err)
	}
	g := &generation{}
	v.state, v.worker = serverv1.Device_LIVE, g
	g.lost.Store(true)
	if list := tab.orphaned(); len(list) != 0 {
		t.Fatal("recovery took a volume that an operation holds")
	}
	r := tab.end(v, opAttach)
	if r == nil || v.state != serverv1.Device_RECOVERING {
		t.Fatalf("recovery %v, state %v; want one that recovers", r, v.state)
	}
	held, taken := tab.takeOver("v", opDetach)
	if held != v || taken != r {
		t.Error("a detach can't take the volume from its recovery")
	}
	if tab.end(v, opRecover) != nil || v.op != opDetach {
		t.Errorf("the end of the recovery gave away what the detach holds (%q)", v.op)
	}
}

// A recovery that a detach has ended may have named its worker, which lives: the volume is
// not served by it yet.
func TestAVolumeWhoseDetachWasRefusedIsRecoveredOn(t *testing.T) {
	tab := newTable(4, testCounters(t))
	v, err := tab.begin("v", opDetach, true)
	if err != nil {
		t.Fatal(err)
	}
	v.state, v.worker = serverv1.Device_RECOVERING, &generation{}
	if r := tab.end(v, opDetach); r == nil {
		t.Error("it stays without anybody who serves it")
	}
}

// The kernel has given the number of a device away: whoever had it must let it alone.
func TestANumberThatIsGivenAwayEndsWhatIsUnderWayForIt(t *testing.T) {
	tab := newTable(4, testCounters(t))
	v, err := tab.begin("v", opAttach, true)
	if err != nil {
		t.Fatal(err)
	}
	v.state, v.entry.Device = serverv1.Device_RECOVERING, 7
	recovery := tab.end(v, opAttach)
	release := &release{id: 7}
	tab.releasing[7] = release
	if failed := tab.fail(7, "gone"); len(failed) != 1 || !v.vanished {
		t.Errorf("failed %v, volume %+v", failed, v)
	}
	if recovery.ctx.Err() == nil {
		t.Error("the recovery goes on")
	}
	if !release.superseded {
		t.Error("the release may delete the next device")
	}
}

func TestTheBusiestVolumesAreRecoveredFirst(t *testing.T) {
	tab := newTable(4, testCounters(t))
	for id, ops := range map[string]uint64{"idle": 0, "busy": 900, "calm": 5} {
		v, err := tab.begin(id, opAttach, true)
		if err != nil {
			t.Fatal(err)
		}
		v.state, v.recentOps, v.worker = serverv1.Device_LIVE, ops, &generation{}
		tab.end(v, opAttach)
		v.worker.lost.Store(true)
	}
	list := tab.orphaned()
	if len(list) != 3 || list[0].volume.entry.Volume != "busy" || list[2].volume.entry.Volume != "idle" {
		t.Errorf("order of recovery: %v", list)
	}
}

func TestOneServerAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := lockStateDir(t.Context(), path, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockStateDir(t.Context(), path, 80*time.Millisecond); err == nil {
		t.Fatal("two servers have the directory")
	}
	time.AfterFunc(50*time.Millisecond, func() { l.Close() })
	l2, err := lockStateDir(t.Context(), path, 10*time.Second)
	if err != nil {
		t.Fatalf("after the first server's end: %v", err)
	}
	l2.Close()
}

func TestPausesBetweenWorkersGrowAndEnd(t *testing.T) {
	if p := pause(freeStarts); p != 0 {
		t.Errorf("pause of %v for single crashes", p)
	}
	last := time.Duration(0)
	for n := freeStarts + 1; n < 100; n++ {
		p := pause(n)
		if p < last || p <= 0 || p > lastPause {
			t.Fatalf("pause(%d) = %v after %v", n, p, last)
		}
		last = p
	}
	if last != lastPause {
		t.Errorf("longest pause %v, want %v", last, lastPause)
	}
}

func TestOnlyRegularFilesInsideThePoolsAreServed(t *testing.T) {
	pools := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	for path, size := range map[string]int64{outside: 1 << 20, filepath.Join(pools, "odd"): 1000, filepath.Join(pools, "empty"): 0} {
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(pools, "dir"), 0o700), os.Symlink(outside, filepath.Join(pools, "link")),
		os.Symlink(filepath.Dir(outside), filepath.Join(pools, "dirlink")), unix.Mkfifo(filepath.Join(pools, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"a path outside":            outside,
		"a path that climbs out":    pools + "/../" + filepath.Base(filepath.Dir(outside)) + "/secret",
		"a relative path":           "odd",
		"the directory itself":      pools,
		"a directory":               filepath.Join(pools, "dir"),
		"a link to a file":          filepath.Join(pools, "link"),
		"a path through a link":     filepath.Join(pools, "dirlink", "secret"),
		"a pipe":                    filepath.Join(pools, "pipe"),
		"a size that is no block's": filepath.Join(pools, "odd"),
		"a file without content":    filepath.Join(pools, "empty"),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := (&backings{}).open(pools, path, false); !errors.Is(err, errInvalid) {
				t.Errorf("error %v, want one that matches errInvalid", err)
			}
		})
	}
	if _, err := (&backings{}).open(pools, filepath.Join(pools, "none"), false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestTheKernelsLimitIsRaisedAndNeverLowered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ublks_max")
	for have, want := range map[string]string{"64\n": "4096", "8192\n": "8192\n"} {
		if err := os.WriteFile(path, []byte(have), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := raiseKernelLimit(path, 4096); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("limit %q became %q (%v), want %q", have, b, err, want)
		}
	}
	if err := raiseKernelLimit(filepath.Join(t.TempDir(), "none"), 4096); err != nil {
		t.Errorf("a driver without a limit: %v", err)
	}
}
