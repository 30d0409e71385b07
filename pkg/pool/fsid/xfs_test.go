package fsid

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

const (
	drawnGroups  = 2
	drawnBlocks  = 16 // a group
	drawnLog     = 4  // block in group 1
	drawnBytes   = drawnGroups * drawnBlocks * 4096
	drawnLogByte = (drawnBlocks + drawnLog) * 4096
)

var drawnID = uuid.MustParse("11111111-2222-4333-8444-555555555555")

// drawXFS draws what Set looks at, by the format's description; mkfs.xfs makes the
// real one in the kernel tier.
func drawXFS() memory {
	m := memory(make([]byte, drawnBytes))
	be := binary.BigEndian
	for n := range drawnGroups {
		s := m[n*drawnBlocks*4096:][:512]
		copy(s, xfsMagic)
		copy(s[xfsUUID:], drawnID[:])
		be.PutUint32(s[xfsBlockSize:], 4096)
		be.PutUint64(s[xfsDataBlocks:], drawnGroups*drawnBlocks)
		be.PutUint64(s[xfsLogStart:], 1<<4|drawnLog)
		be.PutUint32(s[xfsAGBlocks:], drawnBlocks)
		be.PutUint32(s[xfsAGCount:], drawnGroups)
		be.PutUint16(s[xfsVersion:], 0xb4a5)
		be.PutUint16(s[xfsSectorSize:], 512)
		s[xfsAGBlockLog] = 4
		be.PutUint32(s[xfsIncompat:], 0xb)
		sumXFS(s)
	}
	r := m[drawnLogByte:]
	be.PutUint32(r, xlogMagic)
	be.PutUint32(r[xlogCycle:], 1)
	be.PutUint32(r[xlogVersion:], 2)
	be.PutUint32(r[xlogLen:], 512)
	be.PutUint64(r[xlogLSN:], xlogFirstLSN)
	be.PutUint64(r[xlogTailLSN:], xlogFirstLSN)
	be.PutUint32(r[xlogOps:], 1)
	copy(r[xlogUUID:], drawnID[:])
	return m
}

func sumXFS(s []byte) { binary.LittleEndian.PutUint32(s[xfsCRC:], xfsSum(s)) }

func TestXFSGroupsAndLog(t *testing.T) {
	m, id := drawXFS(), uuid.New()
	if err := Set(m, "xfs", drawnBytes, id); err != nil {
		t.Fatal(err)
	}
	for n := range drawnGroups {
		s := m[n*drawnBlocks*4096:][:512]
		if uuid.UUID(s[xfsUUID:xfsUUID+16]) != id || uuid.UUID(s[xfsMetaUUID:xfsMetaUUID+16]) != drawnID ||
			binary.BigEndian.Uint32(s[xfsIncompat:]) != 0xf || binary.LittleEndian.Uint32(s[xfsCRC:]) != xfsSum(s) {
			t.Errorf("superblock of group %d: %x", n, s)
		}
	}
	if got := uuid.UUID(m[drawnLogByte+xlogUUID:][:16]); got != id {
		t.Errorf("the log is of %s", got)
	}
}

func TestXFSThatIsRefused(t *testing.T) {
	be := binary.BigEndian
	first := func(change func(s []byte)) func(memory) {
		return func(m memory) { change(m[:512]); sumXFS(m[:512]) }
	}
	record := func(change func(r []byte)) func(memory) {
		return func(m memory) { change(m[drawnLogByte:]) }
	}
	for name, c := range map[string]struct {
		change func(memory)
		says   string
	}{
		"no file system":             {func(m memory) { clear(m) }, "sectors of 0"},
		"another one":                {func(m memory) { copy(m, "XFSX") }, "no superblock"},
		"a bit that flipped":         {func(m memory) { m[110] ^= 1 }, "wrong checksum"},
		"version 4":                  {first(func(s []byte) { be.PutUint16(s[xfsVersion:], 0xb4a4) }), "version 4"},
		"a UUID that was set":        {first(func(s []byte) { s[xfsIncompat+3] |= xfsMetaUUIDBit }), "features"},
		"a feature of the future":    {first(func(s []byte) { s[xfsIncompat] |= 0x80 }), "features"},
		"a feature of the log":       {first(func(s []byte) { s[xfsLogIncompt+3] |= 1 }), "of the log"},
		"half a mkfs":                {first(func(s []byte) { s[xfsInProgress] = 1 }), "mkfs"},
		"one that was used":          {first(func(s []byte) { s[xfsLSN+7] = 1 }), "mounted"},
		"larger than the file":       {first(func(s []byte) { be.PutUint64(s[xfsDataBlocks:], drawnGroups*drawnBlocks+1) }), "blocks"},
		"more groups":                {first(func(s []byte) { be.PutUint32(s[xfsAGCount:], 3) }), "allocation groups"},
		"a log outside":              {first(func(s []byte) { be.PutUint64(s[xfsLogStart:], 2<<4) }), "a log at"},
		"an external log":            {first(func(s []byte) { be.PutUint64(s[xfsLogStart:], 0) }), "a log at"},
		"another copy":               {func(m memory) { s := m[drawnBlocks*4096:][:512]; s[xfsUUID] ^= 1; sumXFS(s) }, "not the first one's copy"},
		"no log":                     {record(func(r []byte) { clear(r[:512]) }), "does not begin"},
		"a log of the kernel":        {record(func(r []byte) { r[xlogCRC] = 1 }), "record of the kernel"},
		"a log of another":           {record(func(r []byte) { r[xlogUUID] ^= 1 }), "another file system"},
		"a log with a second record": {record(func(r []byte) { copy(r[1024:], r[:512]) }), "more than the record"},
	} {
		t.Run(name, func(t *testing.T) {
			m := drawXFS()
			c.change(m)
			before := slices.Clone(m)
			err := Set(m, "xfs", drawnBytes, uuid.New())
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			if !bytes.Equal(before, m) {
				t.Error("the image was changed")
			}
		})
	}
}

// Whatever the bytes are: no panic, nothing outside the image, and what Set has
// set, it can set again.
func FuzzSet(f *testing.F) {
	f.Add(true, []byte(drawXFS()[:512]), uint32(drawnBytes))
	f.Add(false, make([]byte, 2048), uint32(1<<20))
	f.Fuzz(func(t *testing.T, isXFS bool, head []byte, size uint32) {
		size %= 4 << 20
		m := memory(make([]byte, max(int(size), len(head))))
		fsType := "ext4"
		if isXFS {
			fsType = "xfs"
			copy(m, drawXFS())
			copy(m, head)
			if len(m) >= 512 {
				sumXFS(m[:512])
			}
		} else {
			copy(m, head)
			if len(m) >= ext4SuperOffset+ext4SuperBytes {
				s := m[ext4SuperOffset:][:ext4SuperBytes]
				binary.LittleEndian.PutUint32(s[ext4Checksum:], ext4Sum(s))
			}
		}
		if err := Set(m, fsType, int64(len(m)), uuid.New()); err == nil && fsType == "ext4" {
			if err := Check(m, fsType, int64(len(m))); err != nil {
				t.Error(err)
			}
		}
	})
}
