//go:build ublk

package node

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// resizes says whether the kernel can change the size of a device in use.
func resizes(t *testing.T) bool {
	t.Helper()
	info, err := world.devices.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(info.Features, "UPDATE_SIZE")
}

func TestExpandUnderAWriter(t *testing.T) {
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t, newService(t), c(), 384*mib)
			v.must(v.stage(), v.publish("a", false))
			if !resizes(t) {
				v.grow(512 * mib)
				_, err := v.expand(v.volumePath("a"), 512*mib)
				v.wantCode("growth in use, where the kernel can't", err, codes.FailedPrecondition)
				v.down("a")
				return
			}
			w, err := startWriter(v.dataPath("a"), 128*mib)
			v.must(err)
			_, err = v.expand(v.volumePath("a"), 384*mib+1)
			v.wantCode("more than the file has", err, codes.Unavailable)
			for _, size := range []int64{512 * mib, 512 * mib, gib, 4 * gib} {
				v.grow(size)
				got, err := v.expand(v.volumePath("a"), size)
				if err != nil || got != size {
					t.Errorf("to %d: %d, %v", size, got, err)
				}
				v.fills(v.target("a"), size)
				n := w.n.Load()
				time.Sleep(200 * time.Millisecond)
				if w.n.Load() == n {
					t.Error("the writer stands still")
				}
			}
			// The plugin is replaced between the file and the rest.
			v.grow(5 * gib)
			v.s = newService(t)
			if got, err := v.expand(v.volumePath("a"), 5*gib); err != nil || got != 5*gib {
				t.Errorf("asked of the next plugin: %d, %v", got, err)
			}
			v.fills(v.target("a"), 5*gib)
			v.must(w.stop(), w.check(v.dataPath("a")))
			if v.cap.GetBlock() != nil {
				v.zeros(v.target("a"), 384*mib, 5*gib)
			}
			v.down("a")
			v.must(v.stage(), v.publish("a", false))
			v.fills(v.target("a"), 5*gib)
			v.down("a")
		})
	}
}

// zeros checks a few places of what was added, and that they can be written.
func (v *volume) zeros(path string, from, to int64) {
	v.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	v.must(err)
	defer f.Close()
	for _, at := range []int64{from, (from + to) / 2 / 4096 * 4096, to - 4096} {
		b := make([]byte, 4096)
		if _, err := f.ReadAt(b, at); err != nil || !bytes.Equal(b, make([]byte, 4096)) {
			v.t.Errorf("at %d: %v, or no zeros", at, err)
		}
		if _, err := f.WriteAt(bytes.Repeat([]byte("x"), 4096), at); err != nil {
			v.t.Errorf("write at %d: %v", at, err)
		}
	}
	v.must(f.Sync())
}
