package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// A frame is a 4-byte little-endian length and that many bytes: a kind, a
// 2-byte count and the messages. Many operations share a frame, because a
// message a device was most of the time an attach took.
const (
	maxFrameBytes = 2 << 20
	maxBatch      = 256
	maxTextBytes  = 4096
)

type frameKind uint8

const (
	frameHello    frameKind = 1
	frameRequests frameKind = 2
	frameResults  frameKind = 3
)

// protocolVersion changes with every change of the messages. Both ends are the
// same binary; the check is for a binary that was replaced under a server.
const protocolVersion = 2

type op uint8

const (
	opAttach op = 1 // open, FETCH every tag; answered when all are armed
	opDrain  op = 2 // answered when every tag has ABORTed
	opClose  op = 3 // unmap and close the char device and the file
	opHold   op = 4 // keep new requests back; answered when none is in flight
	opResume op = 5 // end the hold
	opLimit  op = 6 // replace the limits
)

// A request asks for one operation on one device. The fields from queues on are
// opAttach's, but for limits, which opLimit has too, and the times of opHold.
type request struct {
	seq        uint64
	op         op
	device     uint32
	queues     uint16
	depth      uint16
	maxIOBytes uint32
	features   uint64
	slot       uint32 // of the counters
	readOnly   bool
	fileDevice uint64 // st_dev and st_ino the server saw
	fileInode  uint64
	file       ublk.FileInfo // what the server found out about the file
	path       string
	limits     ublk.Limits // Burst in whole milliseconds
	// How long to wait for requests in flight, and when a hold ends by itself.
	waitMillis, holdMillis uint32
}

// A result answers the request of the same seq. errno is 0 where the error has
// none, text is empty for a success.
type result struct {
	seq   uint64
	errno uint32
	text  string
}

// hello is the child's first frame: from then on its fence holds.
type hello struct {
	version uint32
	rings   uint32
	// warnings tell of privileges that could not be had, one a line.
	warnings string
}

var errFrame = errors.New("malformed frame")

// readFrame reads one frame's body into buf, which it grows at need.
func readFrame(r io.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < 3 || n > maxFrameBytes {
		return nil, fmt.Errorf("%w: %d bytes", errFrame, n)
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		return nil, fmt.Errorf("read frame: %w", err)
	}
	return buf, nil
}

// beginFrame starts a frame in b, endFrame fills in its length and count.
func beginFrame(b []byte, k frameKind) []byte {
	return append(b[:0], 0, 0, 0, 0, byte(k), 0, 0)
}

func endFrame(b []byte, count int) []byte {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	binary.LittleEndian.PutUint16(b[5:], uint16(count))
	return b
}

func appendText(b []byte, s string) []byte {
	if len(s) > maxTextBytes {
		s = s[:maxTextBytes]
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendRequest(b []byte, r *request) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, r.seq)
	b = append(b, byte(r.op))
	b = le.AppendUint32(b, r.device)
	switch r.op {
	case opHold:
		b = le.AppendUint32(b, r.waitMillis)
		return le.AppendUint32(b, r.holdMillis)
	case opLimit:
		return appendLimits(b, &r.limits)
	case opAttach:
	default:
		return b
	}
	b = le.AppendUint16(b, r.queues)
	b = le.AppendUint16(b, r.depth)
	b = le.AppendUint32(b, r.maxIOBytes)
	b = le.AppendUint64(b, r.features)
	b = le.AppendUint32(b, r.slot)
	b = append(b, packBools(r.readOnly, r.file.Direct, r.file.PunchHole, r.file.ZeroRange))
	b = le.AppendUint64(b, r.fileDevice)
	b = le.AppendUint64(b, r.fileInode)
	b = le.AppendUint64(b, uint64(r.file.SizeBytes))
	b = le.AppendUint32(b, r.file.DirectOffsetBytes)
	b = le.AppendUint32(b, r.file.DirectMemoryBytes)
	b = appendText(b, r.path)
	return appendLimits(b, &r.limits)
}

func appendLimits(b []byte, l *ublk.Limits) []byte {
	le := binary.LittleEndian
	for _, rate := range []uint64{l.IOPS, l.ReadIOPS, l.WriteIOPS, l.Bytes, l.ReadBytes, l.WriteBytes} {
		b = le.AppendUint64(b, rate)
	}
	return le.AppendUint32(b, uint32(l.Burst.Milliseconds()))
}

// packBools makes the first value bit 0, and so on.
func packBools(list ...bool) (b byte) {
	for i, v := range list {
		if v {
			b |= 1 << i
		}
	}
	return b
}

func appendResult(b []byte, r *result) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.seq)
	b = binary.LittleEndian.AppendUint32(b, r.errno)
	return appendText(b, r.text)
}

func appendHello(b []byte, h *hello) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.version)
	b = binary.LittleEndian.AppendUint32(b, h.rings)
	return appendText(b, h.warnings)
}

// A decoder takes a frame's body apart. It never panics: after the first value
// that is not there, every further one is zero and bad is set.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || len(d.b) < n {
		d.bad = true
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if p := d.take(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if p := d.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if p := d.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (d *decoder) text() string {
	n := int(d.u16())
	if n > maxTextBytes {
		d.bad = true
		return ""
	}
	return string(d.take(n))
}

func (d *decoder) limits() (l ublk.Limits) {
	for _, rate := range []*uint64{&l.IOPS, &l.ReadIOPS, &l.WriteIOPS, &l.Bytes, &l.ReadBytes, &l.WriteBytes} {
		*rate = d.u64()
	}
	l.Burst = time.Duration(d.u32()) * time.Millisecond
	return l
}

func (d *decoder) bools(list ...*bool) {
	b := d.u8()
	for i, p := range list {
		*p = b&(1<<i) != 0
	}
	d.bad = d.bad || b>>len(list) != 0
}

// open checks the frame's kind and returns how many messages follow.
func (d *decoder) open(want frameKind) (int, error) {
	k, n := frameKind(d.u8()), int(d.u16())
	switch {
	case d.bad || n > maxBatch:
		return 0, errFrame
	case k != want:
		return 0, fmt.Errorf("%w: kind %d, want %d", errFrame, k, want)
	}
	return n, nil
}

// close checks that the frame held exactly what was taken out of it.
func (d *decoder) close() error {
	if d.bad || len(d.b) != 0 {
		return errFrame
	}
	return nil
}

func decodeRequests(body []byte) ([]request, error) {
	d := decoder{b: body}
	n, err := d.open(frameRequests)
	if err != nil {
		return nil, err
	}
	list := make([]request, n)
	for i := range list {
		r := &list[i]
		r.seq, r.op, r.device = d.u64(), op(d.u8()), d.u32()
		switch r.op {
		case opDrain, opClose, opResume:
		case opHold:
			r.waitMillis, r.holdMillis = d.u32(), d.u32()
		case opLimit:
			r.limits = d.limits()
		case opAttach:
			r.queues, r.depth, r.maxIOBytes = d.u16(), d.u16(), d.u32()
			r.features, r.slot = d.u64(), d.u32()
			d.bools(&r.readOnly, &r.file.Direct, &r.file.PunchHole, &r.file.ZeroRange)
			r.fileDevice, r.fileInode = d.u64(), d.u64()
			r.file.SizeBytes = int64(d.u64())
			r.file.DirectOffsetBytes, r.file.DirectMemoryBytes = d.u32(), d.u32()
			r.path = d.text()
			r.limits = d.limits()
		default:
			return nil, fmt.Errorf("%w: operation %d", errFrame, r.op)
		}
	}
	return list, d.close()
}

func decodeResults(body []byte) ([]result, error) {
	d := decoder{b: body}
	n, err := d.open(frameResults)
	if err != nil {
		return nil, err
	}
	list := make([]result, n)
	for i := range list {
		list[i] = result{seq: d.u64(), errno: d.u32(), text: d.text()}
	}
	return list, d.close()
}

func decodeHello(body []byte) (hello, error) {
	d := decoder{b: body}
	if _, err := d.open(frameHello); err != nil {
		return hello{}, err
	}
	h := hello{version: d.u32(), rings: d.u32(), warnings: d.text()}
	return h, d.close()
}
