package ublk

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// bufferPool hands out the ring's buffers. They follow requests that move data,
// not devices: an idle device has none. The last one given back is the first
// taken, so that little traffic touches little memory.
type bufferPool struct {
	mem   []byte
	size  int
	stack []int32
}

const noBuffer = -1

func newBufferPool(n, size int) (bufferPool, error) {
	mem, err := mapMemory(n * size)
	if err != nil {
		return bufferPool{}, err
	}
	p := bufferPool{mem: mem, size: size, stack: make([]int32, n)}
	for i := range p.stack {
		p.stack[i] = int32(n - 1 - i)
	}
	return p, nil
}

func (p *bufferPool) free() {
	if p.mem != nil {
		_ = unix.Munmap(p.mem)
	}
}

func (p *bufferPool) take() int32 {
	n := len(p.stack)
	if n == 0 {
		return noBuffer
	}
	i := p.stack[n-1]
	p.stack = p.stack[:n-1]
	return i
}

func (p *bufferPool) put(i int32) { p.stack = append(p.stack, i) }

func (p *bufferPool) at(i int32) unsafe.Pointer {
	return unsafe.Pointer(&p.mem[int(i)*p.size])
}

func (p *bufferPool) bytes(i int32, n int) []byte {
	return p.mem[int(i)*p.size:][:n:n]
}

// fifo is a queue of requests that wait for a buffer, linked through their tags
// so that waiting costs no memory.
type fifo struct{ head, tail *tag }

func (f *fifo) push(t *tag) {
	t.next = nil
	if f.tail == nil {
		f.head = t
	} else {
		f.tail.next = t
	}
	f.tail = t
}

func (f *fifo) pop() *tag {
	t := f.head
	f.head = t.next
	if f.head == nil {
		f.tail = nil
	}
	t.next = nil
	return t
}

// startWaiting gives buffers that were freed in this batch to those who waited
// longest.
func (r *Ring) startWaiting() {
	for r.waiting.head != nil && len(r.pool.stack) > 0 {
		t := r.waiting.pop()
		t.buf = r.pool.take()
		t.queue.begin(r, t)
	}
}
