//go:build ublk

package pool

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"testing"
	"time"
)

var cutNow = func() Cut { return Cut{At: time.Unix(1700000000, 5000).UTC(), Held: 3 * time.Millisecond} }

// write puts n times b at the beginning of a volume.
func write(t *testing.T, p *Pool, id string, b byte, n int) {
	t.Helper()
	f, err := os.OpenFile(p.VolumePath(id), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(bytes.Repeat([]byte{b}, n))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, p *Pool, id string, n int) []byte {
	t.Helper()
	f, err := os.Open(p.VolumePath(id))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func cut(t *testing.T, p *Pool, id, volume string) Snapshot {
	t.Helper()
	c, err := p.CopyToSnapshot(id, volume, cutNow)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Drop()
	if err := errors.Join(c.FillFromVolume(volume), c.Finish()); err != nil {
		t.Fatal(err)
	}
	s, err := p.Snapshot(id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func restore(t *testing.T, p *Pool, id, snapshot string, size int64) error {
	t.Helper()
	c, err := p.CopyToVolume(id, size)
	if err != nil {
		return err
	}
	defer c.Drop()
	return errors.Join(c.FillFromSnapshot(snapshot), c.Finish())
}

func TestSnapshotAndRestore(t *testing.T) {
	p := templatePool(t, nil)
	if err := p.Create("v", 64*mib); err != nil {
		t.Fatal(err)
	}
	write(t, p, "v", 'a', 8*mib)
	s := cut(t, p, "s", "v")
	if s.SizeBytes != 64*mib || s.AllocatedBytes < 8*mib || s.Cut != cutNow() {
		t.Errorf("snapshot %+v", s)
	}
	write(t, p, "v", 'b', 8*mib)
	if err := restore(t, p, "larger", "s", 128*mib); err != nil {
		t.Fatal(err)
	}
	if got := read(t, p, "larger", 8*mib); !bytes.Equal(got, bytes.Repeat([]byte{'a'}, 8*mib)) {
		t.Error("the restored volume has not the bytes of the cut")
	}
	if size, err := p.Size("larger"); err != nil || size != 128*mib {
		t.Errorf("%d bytes, %v", size, err)
	}
	if err := restore(t, p, "smaller", "s", 32*mib); !errors.Is(err, syscall.ERANGE) {
		t.Errorf("restored to less than the source: %v", err)
	}
	u := usage(t, p)
	if u.PromisedBytes != (64+128)*mib || u.SnapshotBytes != s.AllocatedBytes {
		t.Errorf("%+v", u)
	}
	// Volumes and snapshots go in any order, and what stays keeps its bytes.
	if err := p.Delete("v"); err != nil {
		t.Fatal(err)
	}
	reclaimAll(t, p)
	if err := restore(t, p, "again", "s", 64*mib); err != nil || read(t, p, "again", 1)[0] != 'a' {
		t.Errorf("a snapshot after its volume: %v", err)
	}
	if err := errors.Join(p.DeleteSnapshot("s"), p.DeleteSnapshot("s")); err != nil {
		t.Fatal(err)
	}
	reclaimAll(t, p)
	if _, err := p.Snapshot("s"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleted: %v", err)
	}
	if read(t, p, "again", 8*mib)[8*mib-1] != 'a' {
		t.Error("a restored volume after its snapshot reads other bytes")
	}
	if u := usage(t, p); u.SnapshotBytes != 0 || u.ReclaimingBytes != 0 || u.PromisedBytes != (128+64)*mib {
		t.Errorf("in the end %+v", u)
	}
}

func TestTwinMarkEndsOnce(t *testing.T) {
	p := templatePool(t, nil)
	if err := p.Create("v", 16*mib); err != nil {
		t.Fatal(err)
	}
	cut(t, p, "s", "v")
	if err := restore(t, p, "c", "s", 16*mib); err != nil {
		t.Fatal(err)
	}
	twins := func(id string) bool {
		t.Helper()
		is, err := p.Twin(id)
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	if twins("v") || !twins("c") {
		t.Errorf("twins: source %v, copy %v", twins("v"), twins("c"))
	}
	if err := errors.Join(p.NotTwin("c"), p.NotTwin("c")); err != nil || twins("c") {
		t.Errorf("still a twin: %v", err)
	}
}

func TestSnapshotsSurviveAReopen(t *testing.T) {
	p := templatePool(t, nil)
	if err := p.Create("v", 16*mib); err != nil {
		t.Fatal(err)
	}
	write(t, p, "v", 'a', 4*mib)
	s := cut(t, p, "s", "v")
	// One that a crash cuts short: it counts while it is made, and then no more.
	c, err := p.CopyToSnapshot("dies", "v", cutNow)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.FillFromVolume("v"); err != nil {
		t.Fatal(err)
	}
	if u := usage(t, p); u.SnapshotBytes != 2*s.AllocatedBytes {
		t.Errorf("%+v while two snapshots of %d", u, s.AllocatedBytes)
	}
	p.Close()
	c.f.Close()
	p = openPool(t, p.o.StateDir, func(o *Options) { *o = p.o })
	if got, err := p.Snapshot("s"); err != nil || got != s {
		t.Errorf("%+v, %v; was %+v", got, err, s)
	}
	if _, err := os.Stat(c.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
	if u := usage(t, p); u.SnapshotBytes != s.AllocatedBytes {
		t.Errorf("%+v after the crash", u)
	}
}

func TestFullPoolTakesNoSnapshot(t *testing.T) {
	p := templatePool(t, func(o *Options) { o.SizeBytes = 64 * mib })
	if err := p.Create("v", 60*mib); err != nil {
		t.Fatal(err)
	}
	write(t, p, "v", 'a', 8*mib)
	var full *FullError
	if _, err := p.CopyToSnapshot("s", "v", cutNow); !errors.As(err, &full) {
		t.Errorf("a snapshot of 8 MiB with 4 MiB left: %v", err)
	}
	// The volume is written between the reservation and the cut.
	if err := p.Create("w", 2*mib); err != nil {
		t.Fatal(err)
	}
	c, err := p.CopyToSnapshot("s", "w", cutNow)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.FillFromVolume("v"); err != nil {
		t.Fatal(err)
	}
	if err := c.Finish(); !errors.As(err, &full) {
		t.Errorf("a snapshot that grew beyond the pool: %v", err)
	}
	c.Drop()
	if u := usage(t, p); u.SnapshotBytes != 0 || u.PromisedBytes != 62*mib {
		t.Errorf("%+v", u)
	}
}

// What the pool's own files share must neither look like space that others use, nor
// hide what they do.
func TestSharedExtentsCountOnce(t *testing.T) {
	p := templatePool(t, nil)
	foreign := func() int64 {
		t.Helper()
		if err := p.Measure(); err != nil {
			t.Fatal(err)
		}
		return p.foreign
	}
	before := foreign()
	if err := p.Create("v", 64*mib); err != nil {
		t.Fatal(err)
	}
	write(t, p, "v", 'a', 32*mib)
	cut(t, p, "s", "v")
	if err := restore(t, p, "c", "s", 64*mib); err != nil {
		t.Fatal(err)
	}
	write(t, p, "v", 'b', 4*mib)
	if now := foreign(); now-before > mib || before-now > mib {
		t.Errorf("%d bytes are others', %d before", now, before)
	}
	if err := p.Delete("v"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.o.StateDir+"/foreign", make([]byte, 16*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if now := foreign() - before; now < 15*mib || now > 17*mib {
		t.Errorf("%d bytes more are others', want 16 MiB", now)
	}
}

// A snapshot that is being cut counts, whoever looks for it meanwhile.
func TestALookAtASnapshotThatIsBeingCutTakesNothingBack(t *testing.T) {
	p := templatePool(t, nil)
	if err := p.Create("v", 64*mib); err != nil {
		t.Fatal(err)
	}
	write(t, p, "v", 'a', 8*mib)
	c, err := p.CopyToSnapshot("s", "v", cutNow)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Drop()
	before := usage(t, p).SnapshotBytes
	if _, err := p.Snapshot("s"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a snapshot without a file: %v", err)
	}
	if got := usage(t, p).SnapshotBytes; before == 0 || got != before {
		t.Errorf("%d bytes of snapshots count, %d before somebody looked", got, before)
	}
	c.Drop()
	if got := usage(t, p).SnapshotBytes; got != 0 {
		t.Errorf("%d bytes count for a snapshot that was given up", got)
	}
}

// What is deleted is cut off at its end before long: a volume must not be made of the rest.
func TestASnapshotThatIsDeletedMeanwhileIsNotRestored(t *testing.T) {
	p := templatePool(t, nil)
	if err := p.Create("v", 64*mib); err != nil {
		t.Fatal(err)
	}
	write(t, p, "v", 'a', 8*mib)
	cut(t, p, "s", "v")
	from, err := p.openSnapshot("s")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.DeleteSnapshot("s"); err != nil {
		t.Fatal(err)
	}
	c, err := p.CopyToVolume("w", 64*mib)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Drop()
	if err := c.fillFromSnapshot(from); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("restored from a snapshot that is deleted: %v", err)
	}
}
