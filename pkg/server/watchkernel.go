package server

import "time"

// Pauses between looks whether a wedged kernel answers again. Each look may get
// stuck as well and then keeps a worker of the control ring busy for good, so
// they become rare.
const (
	firstRecheck = 30 * time.Second
	lastRecheck  = time.Hour
)

// watchKernel takes the mark of a wedged kernel away once it answers: a disk
// below a pool that hung for a minute must not cost the node its volumes. From then on
// it looks for the devices of commands that were given up.
func (s *Server) watchKernel() {
	var unknown strays
	for pause := firstRecheck; ; {
		if sleep(s.stopping, pause) != nil {
			return
		}
		if s.kernel.wedgedMessage() == "" {
			pause = firstRecheck
			if s.kernel.gaveUp() {
				unknown = s.deleteStrays(unknown)
			}
			continue
		}
		if err := s.kernel.recheck(s.owner.tag); err != nil {
			s.log.Error("kernel is wedged", "error", err)
			pause = min(lastRecheck, 2*pause)
			continue
		}
		s.log.Info("kernel answers again")
	}
}
