//go:build ublk

package pool

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	xfsGoingDown  = 0x8004587d // XFS_IOC_GOINGDOWN of fs/xfs/libxfs/xfs_fs.h
	xfsNoLogFlush = 2          // as a power cut: what is not on disk is lost
)

// The pool's file system goes down in the midst of many clones. Every volume is
// blank or has a whole file system afterwards, and one that was reported cloned is.
func TestPowerCutWhileCloning(t *testing.T) {
	state := stateOn(t, "xfs")
	with := func(o *Options) { o.SizeBytes, o.MaxTemplates = 0, 4 }
	p := openPool(t, state, with)
	const n = 60
	for i := range n {
		mustCreate(t, p, 16*mib, fmt.Sprint("v", i))
	}
	var made atomic.Int32
	var mu sync.Mutex
	cloned := map[string]bool{}
	var workers sync.WaitGroup
	var next atomic.Int32
	down := make(chan struct{})
	for range 4 {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				id := fmt.Sprint("v", i)
				if err := p.Clone(t.Context(), id, ext4Template("r", &made)); err != nil {
					continue // after the cut
				}
				mu.Lock()
				cloned[id] = true
				if len(cloned) == 20 {
					close(down)
				}
				mu.Unlock()
			}
		})
	}
	<-down
	// Only what was reported before the cut counts: XFS answers a sync of a
	// directory with success even after it, and a machine without power nothing.
	mu.Lock()
	reported := maps.Clone(cloned)
	mu.Unlock()
	if err := unix.IoctlSetPointerInt(int(p.root.Fd()), xfsGoingDown, xfsNoLogFlush); err != nil {
		t.Fatal(err)
	}
	workers.Wait()
	if len(cloned) == n {
		t.Fatal("the cut came after the last clone")
	}
	// Its descriptors must go before the file system can.
	if err := errors.Join(p.Close(), unix.Unmount(state, 0), unix.Mount(disk, state, "xfs", 0, "")); err != nil {
		t.Fatal(err)
	}

	p = openPool(t, state, with)
	if got := usage(t, p).PromisedBytes; got != n*16*mib {
		t.Errorf("promised %d: volumes were lost or made", got)
	}
	template := uuidAt(t, filepath.Join(p.templates.dir.Name(), templateNames(t, p)[0]))
	whole, uuids := 0, map[string]bool{template: true}
	for i := range n {
		id := fmt.Sprint("v", i)
		blank, err := p.NeverWritten(id)
		if err != nil {
			t.Fatal(err)
		}
		if blank {
			if reported[id] {
				t.Errorf("%s was reported cloned and is blank", id)
			}
			continue
		}
		whole++
		uuid := uuidAt(t, p.VolumePath(id))
		if uuids[uuid] {
			t.Errorf("%s has a UUID that is not its own", id)
		}
		uuids[uuid] = true
		program(t, "e2fsck", "-fn", p.VolumePath(id))
	}
	t.Logf("%d reported, %d whole of %d", len(reported), whole, n)
	for _, name := range templateNames(t, p) {
		if strings.HasPrefix(name, interimPrefix) {
			t.Errorf("left behind: %s", name)
		}
	}
}
