package server

import (
	"errors"
	"fmt"
	"io/fs"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

// takeLive takes a volume that is served, for an operation that must give it back by end.
// An error matches fs.ErrNotExist for one that is not attached, errUnavailable while it is
// being recovered or if it has failed, and errBusy while another operation holds it.
func (s *Server) takeLive(id, op string) (*volume, error) {
	if !validVolumeID(id) {
		return nil, fmt.Errorf("volume id %q: %w", id, errInvalid)
	}
	v, err := s.table.begin(id, op, false)
	if v == nil {
		return nil, fmt.Errorf("%s volume %s: it is not attached: %w", op, id, fs.ErrNotExist)
	}
	var state serverv1.Device_State
	var message, holder string
	s.table.update(func() { state, message, holder = v.state, v.message, v.op })
	switch {
	case errors.Is(err, errBusy) && holder != opRecover:
		return nil, err
	case err == nil && state == serverv1.Device_LIVE:
		return v, nil
	case err == nil:
		s.end(v, op)
	}
	return nil, fmt.Errorf("%s volume %s: %s: %s: %w", op, id, state, message, errUnavailable)
}
