package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
	"github.com/csi-ublk/csi-ublk/pkg/server/worker"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

func TestErrorsOfCutsAndGrowthKeepTheirMeaning(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"a worker that is gone":      {heldError(fmt.Errorf("hold: %w", worker.ErrLost)), codes.Unavailable},
		"requests that do not end":   {heldError(fmt.Errorf("hold: %w", syscall.ETIMEDOUT)), codes.DeadlineExceeded},
		"a hold that ended before":   {heldError(errors.New("ublk resume: not held")), codes.Unavailable},
		"a pool without reflink":     {fmt.Errorf("clone: %w: %w", errNoSharing, syscall.EOPNOTSUPP), codes.FailedPrecondition},
		"a full pool":                {&fs.PathError{Op: "clone", Err: syscall.ENOSPC}, codes.ResourceExhausted},
		"a kernel without a feature": {fmt.Errorf("resize: %w", errNoResize), codes.Unimplemented},
		"a file that shrank":         {fmt.Errorf("resize: %w", errShrunk), codes.FailedPrecondition},
	} {
		if got := status.Code(withCode(c.err)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestACutNamesEachVolumeOnce(t *testing.T) {
	same := &serverv1.CutRequest_Copy{VolumeId: "a", TargetPath: "/p/1"}
	for name, list := range map[string][]*serverv1.CutRequest_Copy{
		"nothing":       nil,
		"a volume":      {same, {VolumeId: "a", TargetPath: "/p/2"}},
		"a target":      {same, {VolumeId: "b", TargetPath: "/p/1"}},
		"more than can": make([]*serverv1.CutRequest_Copy, maxCutCopies+1),
	} {
		if _, err := newCopies(&serverv1.CutRequest{Copies: list}); !errors.Is(err, errInvalid) {
			t.Errorf("%s: %v, want that it is invalid", name, err)
		}
	}
}

func TestATargetIsAnEmptyFileInThePool(t *testing.T) {
	pools, outside := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(pools, "p", name) }
	if err := os.Mkdir(at(""), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, size := range map[string]int{at("source"): 4096, at("empty"): 0, at("full"): 1, filepath.Join(outside, "empty"): 0} {
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(at("empty"), at("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, at("elsewhere")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A pipe that nobody reads can't be opened, and then is not what is refused.
	reader, err := os.OpenFile(at("pipe"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	st, err := os.Stat(at("source"))
	if err != nil {
		t.Fatal(err)
	}
	inode := st.Sys().(*syscall.Stat_t).Ino
	open := func(target string) error {
		c := &cutCopy{target: target, volume: &volume{entry: entry{Path: at("source"), Inode: inode}}}
		return errors.Join(c.open(pools), c.close(false))
	}
	if err := open(at("empty")); err != nil {
		t.Error(err)
	}
	for _, target := range []string{
		at("full"), at("pipe"), at("link"), at("elsewhere/empty"), filepath.Join(outside, "empty"), at("") + "/../p/empty", at(""), "empty", "",
	} {
		if err := open(target); !errors.Is(err, errInvalid) {
			t.Errorf("target %q: %v, want that it is invalid", target, err)
		}
	}
	if err := open(at("missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a target that is not there: %v", err)
	}
	if b, err := os.ReadFile(at("full")); err != nil || len(b) != 1 {
		t.Errorf("a refused target has changed: %d bytes, %v", len(b), err)
	}
	inode++
	if err := open(at("empty")); err == nil {
		t.Error("another file than the attached one was taken for the source")
	}
}

func TestATargetOfAFailedCutIsEmptied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if err := (&cutCopy{copy: f}).close(true); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != 0 {
		t.Errorf("it has %d bytes, %v", st.Size(), err)
	}
}

func TestAVolumeThatIsNotServedIsNotTaken(t *testing.T) {
	s := &Server{table: newTable(4, testCounters(t))}
	if _, err := s.takeLive("v", opCut); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not attached: %v", err)
	}
	if _, err := s.takeLive("../v", opCut); !errors.Is(err, errInvalid) {
		t.Errorf("no id: %v", err)
	}
	v, err := s.table.begin("v", opAttach, true)
	if err != nil {
		t.Fatal(err)
	}
	v.state, v.worker = serverv1.Device_LIVE, &generation{}
	if _, err := s.takeLive("v", opCut); !errors.Is(err, errBusy) {
		t.Errorf("during an attach: %v", err)
	}
	s.table.end(v, opAttach)
	if _, err := s.takeLive("v", opCut); err != nil {
		t.Error(err)
	}
	s.table.end(v, opCut)
	v.worker.lost.Store(true)
	if list := s.table.orphaned(); len(list) != 1 {
		t.Fatalf("%d recoveries", len(list))
	}
	if _, err := s.takeLive("v", opCut); !errors.Is(err, errUnavailable) {
		t.Errorf("during a recovery: %v", err)
	}
}

func TestLimitsSurviveTheirMessage(t *testing.T) {
	want := ublk.Limits{IOPS: 1, ReadIOPS: 2, WriteIOPS: 3, Bytes: 4, ReadBytes: 5, WriteBytes: 6, Burst: 7 * time.Millisecond}
	if got := limitsOf(limitsMessage(want)); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if limitsOf(&serverv1.Limits{BurstMs: 5}) != (ublk.Limits{}) || limitsMessage(ublk.Limits{}) != nil {
		t.Error("a burst of nothing is a limit")
	}
}
