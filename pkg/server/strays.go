package server

import (
	"errors"
	"io/fs"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// Strays are devices that this server knows nothing of, by id, with their incarnation. An
// ADD_DEV that was given up at its deadline leaves one, if the kernel carries it out after
// all: nobody was told its number.
type strays map[uint32]uint64

// deleteStrays deletes those of before that are there still and carry our tag, and returns
// what is unknown now. An attach that has its device and has not noted it yet takes much
// less time than passes between two looks.
func (s *Server) deleteStrays(before strays) strays {
	ids, err := ublk.Devices()
	if err != nil {
		s.log.Error("devices can't be listed", "error", err)
		return before
	}
	known := s.table.devices()
	now := make(strays)
	for _, id := range ids {
		if known[id] {
			continue
		}
		incarnation, err := ublk.Incarnation(id)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			s.log.Error("device can't be looked at", "device", id, "error", err)
		case before[id] == incarnation:
			s.deleteStray(id)
			fallthrough // it is known from now on, unless it is another's
		default:
			now[id] = incarnation
		}
	}
	return now
}

func (s *Server) deleteStray(id uint32) {
	info, err := s.kernel.info(id)
	if err == nil && info.Owner == s.owner.tag {
		s.carryOut(step{verb: doDelete, device: &info, reason: "the command that made it was given up"})
	}
}
