//go:build ublk

package bench

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// These tests run as root in a guest, with csi-ublk in PATH (or CSI_UBLK_BIN).

// inGuest makes small options work here: a file system with room on the data disk.
func inGuest(t *testing.T) Options {
	t.Helper()
	o := small()
	bin := os.Getenv("CSI_UBLK_BIN")
	if bin == "" {
		var err error
		if bin, err = exec.LookPath("csi-ublk"); err != nil {
			t.Fatalf("set CSI_UBLK_BIN, or put csi-ublk in PATH: %v", err)
		}
	}
	o.Command, o.Dir, o.Progress = []string{bin}, dataDir(t), t.Output()
	t.Cleanup(func() { nothingLeft(t, o.Dir) })
	return o
}

func dataDir(t *testing.T) string {
	t.Helper()
	disk := cmp.Or(os.Getenv("CSI_UBLK_DATA_DISK"), "/dev/data")
	dir := t.TempDir()
	for _, args := range [][]string{{"mkfs.xfs", "-q", "-f", disk}, {"mount", disk, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// nothingLeft looks for devices, mounts, loop devices, processes and files.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	if ids, err := ublk.Devices(); err != nil || len(ids) != 0 {
		t.Errorf("devices left: %v, %v", ids, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir+"/") {
		t.Errorf("mounts left (%v):\n%s", err, mounts)
	}
	if bound, _ := filepath.Glob("/sys/block/loop*/loop"); len(bound) > 0 {
		t.Errorf("loop devices left: %v", bound)
	}
	if servers, err := serversOf(dir); err != nil || len(servers) > 0 {
		t.Errorf("device servers left: %v, %v", servers, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("files left: %v, %v", files, err)
	}
}

// serversOf finds the device servers with a state directory in dir.
func serversOf(dir string) (pids []int, err error) {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		if text, _ := os.ReadFile(path); strings.Contains(string(text), "--state-dir\x00"+dir+"/") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids, err
}

func TestEachTableIsMeasuredAndLeavesNothing(t *testing.T) {
	// What must be there, at what load, and be more than nothing.
	for table, wants := range map[string][]Key{
		TableKernel: {
			{Part: partStop, Way: wayPlain, Load: 3}, {Part: partDelete, Way: wayPlain, Load: 3}, {Part: partBoth, Way: wayPlain, Load: 1},
			{Part: partStop, Way: wayOurs, Load: 1}, {Part: partDelete, Way: wayOurs, Load: 3}, {Part: partBoth, Way: wayOurs, Load: 3},
		},
		TableLifecycle: {
			{Part: "ADD", Way: wayBare, Load: 4}, {Part: "START", Way: wayBare, Load: 1}, {Part: partStop, Way: wayBare, Load: 1},
			{Part: partDelete, Way: wayBare, Load: 4}, {Part: partUp, Way: wayServer, Load: 1}, {Part: partDiskGone, Way: wayServer, Load: 4},
			{Part: partDown, Way: wayServer, Load: 4}, {Part: partUpRate, Way: wayServer, Load: 4}, {Part: partDownRate, Way: wayBare, Load: 4},
		},
		TableGrowth: {{Part: partEach, Way: wayServer, Load: 0}, {Part: partEach, Way: wayServer, Load: 8}},
		TableIdle:   {{Part: "descriptors", Way: wayServer, Load: 8}, {Part: "worker, RSS", Way: wayServer, Load: 8}},
		TableNode: {
			{Part: "ext4 up", Way: wayNode, Load: 2}, {Part: "ext4 down", Way: wayLoop, Load: 2},
			{Part: "xfs up, pods", Way: wayLoop, Load: 2}, {Part: "xfs down, pods", Way: wayNode, Load: 2},
		},
	} {
		t.Run(table, func(t *testing.T) {
			o := inGuest(t)
			o.Tables = []string{table}
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range wants {
				if got, ok := r.median(table, w.Part, w.Way, w.Load); !ok || got <= 0 {
					t.Errorf("%s, %s at %d: %v, %v", w.Part, w.Way, w.Load, got, ok)
				}
			}
			if want := os.Getenv("UBLK_EXPECT_KIND"); want != "" && r.kind() != want {
				t.Errorf("kind %s, want %s", r.kind(), want)
			}
			if !r.Conditions.Exact {
				t.Error("the kernel can't be asked whether a number is free")
			}
			m, err := Merge(r)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Render(t.Output(), FormatText, ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// stopAt does something soon after a line of progress had its words.
type stopAt struct {
	words string
	stop  func()
	met   bool
}

func (s *stopAt) Write(line []byte) (int, error) {
	if strings.Contains(string(line), s.words) && !s.met {
		s.met = true
		time.AfterFunc(150*time.Millisecond, s.stop) // in the midst of it
	}
	return len(line), nil
}

func TestARunThatIsCutShortLeavesNothing(t *testing.T) {
	for table, at := range map[string]string{
		TableKernel: "kernel: our order, 3 callers", TableLifecycle: "lifecycle: server, 4", TableIdle: "idle: 8 devices", TableNode: "node: csi-ublk, xfs",
	} {
		t.Run(table, func(t *testing.T) {
			o := inGuest(t)
			o.Tables, o.Devices, o.Volumes, o.Idle = []string{table}, 60, 60, []int{8, 200}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			progress := &stopAt{words: at, stop: cancel}
			o.Progress = progress
			_, err := Run(ctx, o)
			if !progress.met || err == nil || !strings.Contains(err.Error(), "cancel") {
				t.Errorf("met %v, %v", progress.met, err)
			}
		})
	}
}

// A device server that dies takes the run with it, and no device is left all the same.
func TestAServerThatDiesIsStartedAgainToCleanUp(t *testing.T) {
	o := inGuest(t)
	o.Tables, o.Volumes, o.Others = []string{TableGrowth}, 60, []int{0, 30, 60}
	progress := &stopAt{words: "idle: 60 devices", stop: func() {
		servers, err := serversOf(o.Dir)
		if err != nil || len(servers) != 1 {
			t.Errorf("servers %v, %v", servers, err)
		}
		for _, pid := range servers {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}}
	o.Progress = progress
	if _, err := Run(t.Context(), o); !progress.met || err == nil {
		t.Errorf("met %v, %v", progress.met, err)
	}
}

// What a killed bench has left goes, what another program made stays.
func TestSweepTakesOnlyWhatAKilledBenchLeft(t *testing.T) {
	o := inGuest(t)
	c, err := ublk.OpenControl(ublk.ControlOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const nobody = 1 << 30 // above any process id
	made := make(map[string]uint32)
	for name, owner := range map[string]uint64{"killed": ownerMagic<<32 | nobody, "running": ownerMagic<<32 | 1, "other": 7} {
		info, err := c.Add(t.Context(), ublk.DeviceOptions{ID: -1, Depth: 1, Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		made[name] = info.ID
	}
	o.Tables = []string{TableKernel}
	if _, err := Run(t.Context(), o); err != nil {
		t.Error(err)
	}
	left, err := ublk.Devices()
	if err != nil || len(left) != 2 || !slices.Contains(left, made["running"]) || !slices.Contains(left, made["other"]) {
		t.Errorf("devices left %v, %v; made %v", left, err, made)
	}
	for _, id := range left {
		if err := c.Delete(context.Background(), id); err != nil {
			t.Error(err)
		}
	}
}

// A loop device that is bound to one of our files is found by the file.
func TestLoopsThatAreLeftAreDetached(t *testing.T) {
	dir := dataDir(t)
	l, err := newLoopPods(&station{dir: dir}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.prepare(1); err != nil {
		t.Fatal(err)
	}
	device, err := attachLoop(t.Context(), l.file(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.close(t.Context()); err != nil {
		t.Error(err)
	}
	f, err := os.Open(l.file(0))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if found, err := blockdev.FindLoop(f); err != nil || found != "" {
		t.Errorf("%s is still bound (%v), was %s", found, err, device)
	}
}

func TestAKernelWithoutRoomIsNamedWithTheRemedy(t *testing.T) {
	o := inGuest(t)
	o.Devices, o.Tables = maxDevices+1, []string{TableKernel}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--devices") {
		t.Errorf("more devices than there are numbers: %v", err)
	}
}
