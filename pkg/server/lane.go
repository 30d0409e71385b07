package server

import (
	"sync"

	"golang.org/x/sync/semaphore"
)

// Parallelism in a lane. Control commands are bounded by the control ring as well.
const (
	attachesAtOnce   = 64
	recoveriesAtOnce = 32
)

// A lane bounds how many volumes of one file system are worked on at once. Those of
// another, whose disk may be faster, do not wait for them.
type lane struct {
	attaching  *semaphore.Weighted
	recovering *turns
}

// lanes are made when they are first asked for, by the file system's st_dev; 0 is the
// lane of volumes whose file has not been looked at.
type lanes struct {
	mu    sync.Mutex
	known map[uint64]*lane
}

func (l *lanes) of(fileSystem uint64) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known[fileSystem] == nil {
		if l.known == nil {
			l.known = make(map[uint64]*lane)
		}
		l.known[fileSystem] = &lane{semaphore.NewWeighted(attachesAtOnce), newTurns(recoveriesAtOnce)}
	}
	return l.known[fileSystem]
}
