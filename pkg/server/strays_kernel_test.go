//go:build ublk && linux

package server

import (
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// A device with our tag that no volume has is deleted at the second look, for at the first
// it may be on its way into the table; those of volumes and of others never.
func TestStraysAreDeleted(t *testing.T) {
	s, _, user := slowVolume(t, true)
	add := func(owner uint64) uint32 {
		info, err := s.kernel.add(ublk.DeviceOptions{ID: -1, Depth: 1, Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		return info.ID
	}
	listed := func(id uint32) bool {
		there, err := ublk.Listed(id)
		if err != nil {
			t.Fatal(err)
		}
		return there
	}
	ours, others := add(s.owner.tag), add(s.owner.tag+1)
	t.Cleanup(func() {
		if err := s.kernel.delete(others); err != nil {
			t.Errorf("another's device: %v", err)
		}
	})
	unknown := s.deleteStrays(nil) // and what the server's own probe of the kernel has just then
	if len(unknown) < 2 || !listed(ours) {
		t.Errorf("after the first look: unknown %v, ours is there: %v", unknown, listed(ours))
	}
	// Another device of that number in the meantime: the looks begin anew.
	again := strays{ours: unknown[ours] - 1}
	if s.deleteStrays(again); s.table.leftoverCount() != 0 {
		t.Error("a device was deleted that was seen once")
	}
	unknown = s.deleteStrays(strays{ours: unknown[ours], others: unknown[others]})
	waitFor(t, "the stray to go", func() bool { return !listed(ours) && s.table.leftoverCount() == 0 })
	s.deleteStrays(strays{others: unknown[others]})
	if s.table.leftoverCount() != 0 || !listed(others) {
		t.Errorf("%d are being deleted, another's device is there: %v", s.table.leftoverCount(), listed(others))
	}
	if err := write(user, block('A')); err != nil {
		t.Errorf("a volume in use: %v", err)
	}
}
