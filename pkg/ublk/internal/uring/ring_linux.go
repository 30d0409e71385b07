package uring

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Config describes a ring.
type Config struct {
	// Entries and CompletionEntries are powers of two; what the kernel cannot
	// give, it cuts.
	Entries, CompletionEntries uint32
	// Wide makes entries of 128 bytes, which control commands need.
	Wide bool
}

// Ring is one io_uring. See the package's comment for its thread rule.
type Ring struct {
	fd   int
	wide bool

	sqHead, sqTail, sqFlags *uint32
	sqMask, sqEntries       uint32
	sqes                    unsafe.Pointer
	// tail is ours; the kernel learns it in enter.
	tail uint32
	torn error // from then on nothing is handed over

	cqHead, cqTail, cqOverflow *uint32
	cqMask                     uint32
	cqes                       unsafe.Pointer

	maps  [3][]byte
	flags uint32

	// Of WaitFor; here, since the kernel reads them and they must not move.
	timeout [2]int64 // struct __kernel_timespec
	waitArg waitArg
}

// Setup flags (IORING_SETUP_*), features, mmap offsets.
const (
	setupCQSize       = 1 << 3
	setupClamp        = 1 << 4
	setupSubmitAll    = 1 << 7
	setupCoopTaskrun  = 1 << 8
	setupSQE128       = 1 << 10
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	featNoDrop = 1 << 1

	offSQRing = 0
	offCQRing = 0x8000000
	offSQEs   = 0x10000000

	sqCQOverflow = 1 << 1
)

// New makes a ring for the calling thread.
func New(c Config) (*Ring, error) {
	base := uint32(setupCQSize | setupClamp | setupSubmitAll)
	if c.Wide {
		base |= setupSQE128
	}
	// Completions are best delivered when the thread asks for them, in one
	// batch; a kernel before 6.1 can only be asked not to interrupt it.
	var (
		p   params
		fd  int
		err error
	)
	for _, mode := range []uint32{setupSingleIssuer | setupDeferTaskrun, setupCoopTaskrun, 0} {
		p = params{cqEntries: c.CompletionEntries, flags: base | mode}
		if fd, err = setup(c.Entries, &p); err != unix.EINVAL {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("io_uring_setup: %w", explainSetup(err))
	}
	r := &Ring{fd: fd, wide: c.Wide, flags: p.flags}
	if err := r.mmap(&p); err != nil {
		r.Close()
		return nil, err
	}
	if p.features&featNoDrop == 0 {
		r.Close()
		return nil, fmt.Errorf("io_uring: the kernel would drop completions: %w", unix.ENOSYS)
	}
	return r, nil
}

func (r *Ring) mmap(p *params) error {
	entry := sqeBytes
	if r.wide {
		entry = sqe128Bytes
	}
	for i, m := range []struct {
		off  int64
		size int
	}{
		{offSQRing, int(p.sq.array + p.sqEntries*4)},
		{offCQRing, int(p.cq.cqes + p.cqEntries*cqeBytes)},
		{offSQEs, int(p.sqEntries) * entry},
	} {
		b, err := unix.Mmap(r.fd, m.off, m.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return fmt.Errorf("mmap ring: %w", err)
		}
		r.maps[i] = b
	}
	sq, cq := unsafe.Pointer(&r.maps[0][0]), unsafe.Pointer(&r.maps[1][0])
	word := func(base unsafe.Pointer, off uint32) *uint32 { return (*uint32)(unsafe.Add(base, off)) }
	r.sqHead, r.sqTail, r.sqFlags = word(sq, p.sq.head), word(sq, p.sq.tail), word(sq, p.sq.flags)
	r.sqMask, r.sqEntries = *word(sq, p.sq.ringMask), p.sqEntries
	r.cqHead, r.cqTail, r.cqOverflow = word(cq, p.cq.head), word(cq, p.cq.tail), word(cq, p.cq.overflow)
	r.cqMask, r.cqes = *word(cq, p.cq.ringMask), unsafe.Add(cq, p.cq.cqes)
	r.sqes = unsafe.Pointer(&r.maps[2][0])
	r.tail = *r.sqTail
	// Entries are always used in order: the index array is filled once.
	for i := range p.sqEntries {
		*word(sq, p.sq.array+4*i) = i
	}
	return nil
}

// Close ends the ring. The kernel finishes what is in flight in its own time;
// the caller must keep the memory of such operations.
func (r *Ring) Close() error {
	for i, m := range r.maps {
		if m != nil {
			_ = unix.Munmap(m)
			r.maps[i] = nil
		}
	}
	return unix.Close(r.fd)
}

// Deferred reports whether completions only arrive when the thread enters the
// kernel for them.
func (r *Ring) Deferred() bool { return r.flags&setupDeferTaskrun != 0 }

// Space is the number of entries that Next can return before a Submit.
func (r *Ring) Space() int {
	return int(r.sqEntries - (r.tail - atomic.LoadUint32(r.sqHead)))
}

// Next returns a zeroed entry that the next Submit hands over. There must be
// Space.
func (r *Ring) Next() *SQE {
	s := r.at(r.tail)
	r.tail++
	if r.wide {
		*(*[sqe128Bytes]byte)(unsafe.Pointer(s)) = [sqe128Bytes]byte{}
		return s
	}
	*s = SQE{}
	return s
}

// at is the entry that was, or will be, the i'th.
func (r *Ring) at(i uint32) *SQE {
	size := uintptr(sqeBytes)
	if r.wide {
		size = sqe128Bytes
	}
	return (*SQE)(unsafe.Add(r.sqes, uintptr(i&r.sqMask)*size))
}

// Peek copies the oldest completion to c, if there is one, and frees its place.
func (r *Ring) Peek(c *CQE) bool {
	head := *r.cqHead
	if head == atomic.LoadUint32(r.cqTail) {
		return false
	}
	*c = *(*CQE)(unsafe.Add(r.cqes, uintptr(head&r.cqMask)*cqeBytes))
	atomic.StoreUint32(r.cqHead, head+1)
	return true
}

// Ready reports whether a completion is there to Peek.
func (r *Ring) Ready() bool { return *r.cqHead != atomic.LoadUint32(r.cqTail) }

// Dropped counts completions the kernel had no memory to keep. It must stay 0:
// what was dropped will be waited for in vain.
func (r *Ring) Dropped() uint32 { return atomic.LoadUint32(r.cqOverflow) }
