package ublk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestProbeFileLeavesTheFileAsItIs(t *testing.T) {
	name := filepath.Join(t.TempDir(), "volume")
	content := bytes.Repeat([]byte("abc"), 1000)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var before, after unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &before); err != nil {
		t.Fatal(err)
	}
	info, err := ProbeFile(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fstat(int(f.Fd()), &after); err != nil {
		t.Fatal(err)
	}
	if info.SizeBytes != int64(len(content)) || info.Direct || !info.PunchHole {
		t.Errorf("found %+v", info)
	}
	if after.Size != before.Size || after.Blocks != before.Blocks {
		t.Errorf("%d bytes in %d blocks became %d in %d", before.Size, before.Blocks, after.Size, after.Blocks)
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, content) {
		t.Errorf("content changed, %v", err)
	}
}

func TestOnlyRegularFilesAreProbed(t *testing.T) {
	f, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := ProbeFile(f); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("probe of a character device: %v", err)
	}
	if _, err := File(f, FileOptions{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("target of a character device: %v", err)
	}
}

func TestFailuresThatStick(t *testing.T) {
	var s stickyError
	if s.failed() || s.err() != nil {
		t.Error("failed from the start")
	}
	if !s.set(unix.EIO) || s.set(unix.ENOSPC) {
		t.Error("the first error must win")
	}
	if !errors.Is(s.err(), unix.EIO) {
		t.Errorf("got %v", s.err())
	}
}
