//go:build ublk

package node

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// metadataClient asks the service over a socket.
func metadataClient(t *testing.T) csi.SnapshotMetadataClient {
	t.Helper()
	endpoint := "unix://" + filepath.Join(t.TempDir(), "csi.sock")
	s, err := driver.NewServer(driver.ServerOptions{
		Endpoint: endpoint, Identity: driver.NewIdentity(driver.IdentityOptions{SnapshotMetadata: true}), SnapshotMetadata: &SnapshotMetadata{Pools: world.pools},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Start(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return csi.NewSnapshotMetadataClient(conn)
}

// answer is a stream that has ended.
type answer struct {
	messages, size int64
	tuples         []*csi.BlockMetadata
	most           int // tuples in one message
	err            error
}

type message interface {
	GetBlockMetadataType() csi.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

func answerOf[T message](t *testing.T, recv func() (T, error)) (a answer) {
	t.Helper()
	for {
		m, err := recv()
		if errors.Is(err, io.EOF) {
			return a
		}
		if a.err = err; err != nil {
			return a
		}
		if m.GetBlockMetadataType() != csi.BlockMetadataType_VARIABLE_LENGTH {
			t.Errorf("type %v", m.GetBlockMetadataType())
		}
		a.messages++
		a.size = m.GetVolumeCapacityBytes()
		a.most = max(a.most, len(m.GetBlockMetadata()))
		a.tuples = append(a.tuples, m.GetBlockMetadata()...)
	}
}

func allocatedOf(t *testing.T, c csi.SnapshotMetadataClient, id string, from int64, limit int32) answer {
	t.Helper()
	s, err := c.GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: id, StartingOffset: from, MaxResults: limit})
	if err != nil {
		t.Fatal(err)
	}
	return answerOf(t, s.Recv)
}

func deltaOf(t *testing.T, c csi.SnapshotMetadataClient, base, target string, from int64, limit int32) answer {
	t.Helper()
	s, err := c.GetMetadataDelta(t.Context(), &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: from, MaxResults: limit})
	if err != nil {
		t.Fatal(err)
	}
	return answerOf(t, s.Recv)
}

// cutAs cuts a volume that nobody uses.
func cutAs(t *testing.T, snapshot, volume string) {
	t.Helper()
	c, err := world.pool.CopyToSnapshot(snapshot, volume, func() pool.Cut { return pool.Cut{At: time.Now()} })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Drop()
	if err := errors.Join(c.FillFromVolume(volume), c.Finish()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := world.pool.DeleteSnapshot(snapshot); err != nil {
			t.Error(err)
		}
	})
}

// A backup is read by what the service says of the first snapshot, and brought up to
// the second by what it says of the two, in pieces and with interruptions: it has the
// second's bytes.
func TestBackupByChangedBlocks(t *testing.T) {
	const size, block, id = 64 * mib, 64 << 10, "metadata-v"
	if err := world.pool.Create(id, size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := world.pool.Delete(id); err != nil {
			t.Error(err)
		}
	})
	put := func(at int64, b byte) {
		t.Helper()
		f, err := os.OpenFile(world.pool.VolumePath(id), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt(bytes.Repeat([]byte{b}, block), at*block)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(100) {
		put(3*i, 'a')
	}
	cutAs(t, "metadata-1", id)
	for i := range int64(20) {
		put(15*i, 'b')
		put(700+2*i, 'c')
	}
	cutAs(t, "metadata-2", id)
	c := metadataClient(t)

	backup := make([]byte, size)
	apply := func(a answer, snapshot string) {
		t.Helper()
		f, err := os.Open(filepath.Join(world.dir, "pools", "default", "snapshots", snapshot))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, b := range a.tuples {
			if _, err := f.ReadAt(backup[b.ByteOffset:b.ByteOffset+b.SizeBytes], b.ByteOffset); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := allocatedOf(t, c, "metadata-1", 0, 7)
	if first.err != nil || first.size != size || len(first.tuples) != 100 || first.most > 7 || first.messages < 15 {
		t.Errorf("allocated: %d tuples of a volume of %d bytes in %d messages of at most %d: %v", len(first.tuples), first.size, first.messages, first.most, first.err)
	}
	apply(first, "metadata-1")
	// Interrupted after each message, as a caller would go on.
	for from := int64(0); ; {
		s, err := c.GetMetadataDelta(t.Context(), &csi.GetMetadataDeltaRequest{BaseSnapshotId: "metadata-1", TargetSnapshotId: "metadata-2", StartingOffset: from, MaxResults: 3})
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(m.BlockMetadata) == 0 {
			break
		}
		apply(answer{tuples: m.BlockMetadata}, "metadata-2")
		last := m.BlockMetadata[len(m.BlockMetadata)-1]
		if last.ByteOffset+last.SizeBytes <= from {
			t.Fatalf("asked from %d, got %v", from, last)
		}
		from = last.ByteOffset + last.SizeBytes
	}
	want, err := os.ReadFile(filepath.Join(world.dir, "pools", "default", "snapshots", "metadata-2"))
	if err != nil || !bytes.Equal(backup, want) {
		t.Errorf("the backup is not the second snapshot (%v)", err)
	}
	if a := deltaOf(t, c, "metadata-1", "metadata-2", 0, 0); a.err != nil || len(a.tuples) != 40 || a.messages != 1 {
		t.Errorf("delta: %d tuples in %d messages, want 40 in 1: %v", len(a.tuples), a.messages, a.err)
	}
	if a := deltaOf(t, c, "metadata-2", "metadata-2", 0, 0); a.err != nil || len(a.tuples) != 0 || a.messages != 1 || a.size != size {
		t.Errorf("nothing has changed: %+v", a)
	}
}

func TestSnapshotMetadataRefusals(t *testing.T) {
	const id = "metadata-small"
	if err := world.pool.Create(id, mib); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = world.pool.Delete(id) })
	cutAs(t, "metadata-s", id)
	c := metadataClient(t)
	for name, got := range map[string]struct {
		answer
		want codes.Code
	}{
		"no id":                      {allocatedOf(t, c, "", 0, 0), codes.InvalidArgument},
		"no such snapshot":           {allocatedOf(t, c, "metadata-none", 0, 0), codes.NotFound},
		"a path":                     {allocatedOf(t, c, "../volumes/"+id, 0, 0), codes.NotFound},
		"before the beginning":       {allocatedOf(t, c, "metadata-s", -1, 0), codes.OutOfRange},
		"the end":                    {allocatedOf(t, c, "metadata-s", mib, 0), codes.OK},
		"behind the end":             {allocatedOf(t, c, "metadata-s", mib+1, 0), codes.OutOfRange},
		"fewer than no tuples":       {allocatedOf(t, c, "metadata-s", 0, -1), codes.InvalidArgument},
		"no base":                    {deltaOf(t, c, "", "metadata-s", 0, 0), codes.InvalidArgument},
		"no target":                  {deltaOf(t, c, "metadata-s", "", 0, 0), codes.InvalidArgument},
		"no such base":               {deltaOf(t, c, "metadata-none", "metadata-s", 0, 0), codes.NotFound},
		"no such target":             {deltaOf(t, c, "metadata-s", "metadata-none", 0, 0), codes.NotFound},
		"a delta behind the end":     {deltaOf(t, c, "metadata-s", "metadata-s", mib+1, 0), codes.OutOfRange},
		"a delta of negative tuples": {deltaOf(t, c, "metadata-s", "metadata-s", 0, -1), codes.InvalidArgument},
	} {
		if status.Code(got.err) != got.want {
			t.Errorf("%s: %v, want %v", name, got.err, got.want)
		}
		if len(got.tuples) > 0 {
			t.Errorf("%s: %v", name, slices.Clone(got.tuples))
		}
	}
}
