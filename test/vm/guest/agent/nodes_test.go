package main

import (
	"reflect"
	"syscall"
	"testing"
)

func TestStaticNodes(t *testing.T) {
	got, err := staticNodes("# Device nodes to trigger on-demand module loading.\nloop loop-control c10:237\nsnd net/tun c10:200\nold disk b259:300\n")
	want := []staticNode{
		{"loop-control", syscall.S_IFCHR | 0o600, 10<<8 | 237},
		{"net/tun", syscall.S_IFCHR | 0o600, 10<<8 | 200},
		{"disk", syscall.S_IFBLK | 0o600, 1<<20 | 259<<8 | 300&0xff},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for name, line := range map[string]string{
		"two words": "loop loop-control", "no kind": "loop loop-control 10:237", "no number": "loop loop-control c10", "outside of /dev": "loop ../x c10:237",
	} {
		if got, err := staticNodes(line); err == nil {
			t.Errorf("%s: taken for %v", name, got)
		}
	}
}
