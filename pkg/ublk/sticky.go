package ublk

import "sync/atomic"

// stickyError keeps the first error it is given.
type stickyError struct{ p atomic.Pointer[error] }

func (s *stickyError) set(err error) bool { return s.p.CompareAndSwap(nil, &err) }

func (s *stickyError) failed() bool { return s.p.Load() != nil }

func (s *stickyError) err() error {
	if p := s.p.Load(); p != nil {
		return *p
	}
	return nil
}
