package ublk

import (
	"syscall"
	"testing"
	"unsafe"
)

// Another process, perhaps of another version, reads these.
func TestCountersStayWhereTheyAre(t *testing.T) {
	var c Counters
	for name, f := range map[string]struct{ got, want uintptr }{
		"Reads":       {unsafe.Offsetof(c.Reads), 0},
		"Writes":      {unsafe.Offsetof(c.Writes), 8},
		"ReadBytes":   {unsafe.Offsetof(c.ReadBytes), 40},
		"ReadErrors":  {unsafe.Offsetof(c.ReadErrors), 72},
		"ReadNanos":   {unsafe.Offsetof(c.ReadNanos), 112},
		"FUAWrites":   {unsafe.Offsetof(c.FUAWrites), 152},
		"BufferWaits": {unsafe.Offsetof(c.BufferWaits), 160},
		"Failed":      {unsafe.Offsetof(c.Failed), 168},
		"Throttled":   {unsafe.Offsetof(c.ThrottledNanos), 176},
	} {
		if f.got != f.want {
			t.Errorf("%s at %d, want %d", name, f.got, f.want)
		}
	}
}

func TestCountersInForeignMemory(t *testing.T) {
	words := make([]uint64, CountersBytes/8+1)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	c, err := CountersAt(b)
	if err != nil {
		t.Fatal(err)
	}
	c.Writes.Add(3)
	if words[1] != 3 {
		t.Errorf("memory holds %d", words[1])
	}
	if _, err := CountersAt(b[1:]); err == nil {
		t.Error("unaligned memory was accepted")
	}
	if _, err := CountersAt(b[:8]); err == nil {
		t.Error("too little memory was accepted")
	}
}

func TestLastFailure(t *testing.T) {
	var c Counters
	if f, any := c.LastFailure(); any {
		t.Errorf("none has failed: %v", f)
	}
	for want, f := range map[string]Failure{
		"WRITE between device and buffer: invalid argument": {"WRITE", true, syscall.EINVAL},
		"READ at the file: input/output error":              {"READ", false, syscall.EIO},
		"WRITE_ZEROES at the file: it came short":           {"WRITE_ZEROES", false, 0},
	} {
		for op, name := range opNames {
			if name == f.Op {
				c.noteFailure(op, f.Copying, f.Errno)
			}
		}
		if got, any := c.LastFailure(); !any || got != f || got.String() != want {
			t.Errorf("%q, %v; want %q", got, any, want)
		}
	}
}
