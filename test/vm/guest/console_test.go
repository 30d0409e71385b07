package guest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConsoleSeesPanicsAndComplaints(t *testing.T) {
	for name, c := range map[string]struct {
		text, panic string
		trouble     []string
	}{
		"a quiet boot":          {text: "[    0.1] EXT4-fs (ubda): mounted\n"},
		"a panic":               {text: "x\n[    3.0] Kernel panic - not syncing: sysrq triggered crash\r\n", panic: "[    3.0] Kernel panic - not syncing: sysrq triggered crash"},
		"a warning":             {text: "WARNING: CPU: 0 PID: 1 at block/x.c:1\n", trouble: []string{"WARNING: CPU: 0 PID: 1 at block/x.c:1"}},
		"a hanging task":        {text: "INFO: task x:1 blocked for more than 61 seconds.\n", trouble: []string{"INFO: task x:1 blocked for more than 61 seconds."}},
		"a bug":                 {text: "BUG: kernel NULL pointer dereference\n", trouble: []string{"BUG: kernel NULL pointer dereference"}},
		"the word in a name":    {text: "debug: WARNINGS are off, BUGs too\n"},
		"an error of a device":  {text: "Buffer I/O error on dev ublkb0\n"},
		"a line without an end": {text: "WARNING: half"},
	} {
		t.Run(name, func(t *testing.T) {
			con := newConsole(nil, nil)
			// In pieces: a pattern must be seen across two reads.
			for _, r := range c.text {
				if _, err := con.Write([]byte(string(r))); err != nil {
					t.Fatal(err)
				}
			}
			if got := con.panicked(); got != c.panic {
				t.Errorf("panic %q, want %q", got, c.panic)
			}
			if diff := cmp.Diff(c.trouble, con.complaints()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestConsoleTail(t *testing.T) {
	con := newConsole(nil, nil)
	for i := range 2 * keptLines {
		_, _ = con.Write([]byte(strings.Repeat("x", i%7) + "\n"))
	}
	_, _ = con.Write([]byte("one\ntwo\nthree"))
	if got := con.tail(2); got != "one\ntwo\nthree" {
		t.Errorf("tail = %q", got)
	}
}
