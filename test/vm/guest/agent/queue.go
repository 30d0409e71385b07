package main

import (
	"os"
	"sync"
)

// queue is a command's input on its way. It has no bound: a command that does not read must not stop the line for the others.
type queue struct {
	mu      sync.Mutex
	changed *sync.Cond
	chunks  [][]byte
	ended   bool
}

func newQueue() *queue {
	q := &queue{}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// put appends a chunk; an empty one ends the input.
func (q *queue) put(b []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(b) == 0 {
		q.ended = true
	} else if !q.ended {
		q.chunks = append(q.chunks, b)
	}
	q.changed.Signal()
}

// take waits for the next chunk; nil is the end.
func (q *queue) take() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.chunks) == 0 && !q.ended {
		q.changed.Wait()
	}
	if len(q.chunks) == 0 {
		return nil
	}
	b := q.chunks[0]
	q.chunks = q.chunks[1:]
	return b
}

// copyTo hands the chunks on until the end, and closes the command's input.
func (q *queue) copyTo(input *os.File) {
	defer input.Close()
	for b := q.take(); b != nil; b = q.take() {
		if _, err := input.Write(b); err != nil {
			return // The command does not want it.
		}
	}
}
