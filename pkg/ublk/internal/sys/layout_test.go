package sys

import (
	"testing"
	"unsafe"
)

// The numbers here were printed by a C program over the kernel's own header, so
// that a mistake in the encoding cannot hide in both places.
func TestOpcodesAreTheKernels(t *testing.T) {
	want := map[Op]uint32{
		GetQueueAffinity: 0x80207501, GetDevInfo: 0x80207502, AddDev: 0xC0207504,
		DelDev: 0xC0207505, StartDev: 0xC0207506, StopDev: 0xC0207507,
		SetParams: 0xC0207508, GetParams: 0x80207509, StartRecovery: 0xC0207510,
		EndRecovery: 0xC0207511, GetDevInfo2: 0x80207512, GetFeatures: 0x80207513,
		DelDevAsync: 0x80207514, UpdateSize: 0xC0207515, QuiesceDev: 0xC0207516,
		TryStopDev: 0xC0207517, FetchReq: 0xC0107520, CommitAndFetch: 0xC0107521,
	}
	names := map[string]bool{}
	for op, n := range want {
		if uint32(op) != n {
			t.Errorf("%v = %#x, want %#x", op, uint32(op), n)
		}
		names[op.String()] = true
	}
	if len(names) != len(want) || names[Op(0).String()] {
		t.Errorf("%d names for %d opcodes", len(names), len(want))
	}
}

func TestFieldsLieWhereTheKernelReadsThem(t *testing.T) {
	var (
		c  CtrlCmd
		di DevInfo
		p  Params
		ic IOCmd
		d  IODesc
	)
	for _, f := range []struct {
		name      string
		got, want uintptr
	}{
		{"ctrl.dev_id", unsafe.Offsetof(c.DevID), 0},
		{"ctrl.queue_id", unsafe.Offsetof(c.QueueID), 4},
		{"ctrl.len", unsafe.Offsetof(c.Len), 6},
		{"ctrl.addr", unsafe.Offsetof(c.Addr), 8},
		{"ctrl.data", unsafe.Offsetof(c.Data), 16},
		{"ctrl.dev_path_len", unsafe.Offsetof(c.PathLen), 24},
		{"info.nr_hw_queues", unsafe.Offsetof(di.Queues), 0},
		{"info.queue_depth", unsafe.Offsetof(di.Depth), 2},
		{"info.state", unsafe.Offsetof(di.State), 4},
		{"info.io_desc_size", unsafe.Offsetof(di.DescSize), 6},
		{"info.max_io_buf_bytes", unsafe.Offsetof(di.MaxIOBytes), 8},
		{"info.dev_id", unsafe.Offsetof(di.DevID), 12},
		{"info.ublksrv_pid", unsafe.Offsetof(di.ServerPid), 16},
		{"info.flags", unsafe.Offsetof(di.Flags), 24},
		{"info.ublksrv_flags", unsafe.Offsetof(di.ServerFlags), 32},
		{"info.owner_uid", unsafe.Offsetof(di.OwnerUID), 40},
		{"info.owner_gid", unsafe.Offsetof(di.OwnerGID), 44},
		{"params.len", unsafe.Offsetof(p.Len), 0},
		{"params.types", unsafe.Offsetof(p.Types), 4},
		{"params.basic", unsafe.Offsetof(p.Basic), 8},
		{"basic.logical_bs_shift", unsafe.Offsetof(p.Basic.LogicalShift), 4},
		{"basic.physical_bs_shift", unsafe.Offsetof(p.Basic.PhysicalShift), 5},
		{"basic.io_opt_shift", unsafe.Offsetof(p.Basic.IOOptShift), 6},
		{"basic.io_min_shift", unsafe.Offsetof(p.Basic.IOMinShift), 7},
		{"basic.max_sectors", unsafe.Offsetof(p.Basic.MaxSectors), 8},
		{"basic.chunk_sectors", unsafe.Offsetof(p.Basic.ChunkSectors), 12},
		{"basic.dev_sectors", unsafe.Offsetof(p.Basic.DevSectors), 16},
		{"basic.virt_boundary_mask", unsafe.Offsetof(p.Basic.VirtBoundary), 24},
		{"params.discard", unsafe.Offsetof(p.Discard), 40},
		{"discard.granularity", unsafe.Offsetof(p.Discard.Granularity), 4},
		{"discard.max_discard_sectors", unsafe.Offsetof(p.Discard.MaxDiscardSectors), 8},
		{"discard.max_write_zeroes_sectors", unsafe.Offsetof(p.Discard.MaxWriteZeroesSectors), 12},
		{"discard.max_discard_segments", unsafe.Offsetof(p.Discard.MaxSegments), 16},
		{"params.devt", unsafe.Offsetof(p.Devt), 60},
		{"devt.disk_major", unsafe.Offsetof(p.Devt.DiskMajor), 8},
		{"io.q_id", unsafe.Offsetof(ic.Queue), 0},
		{"io.tag", unsafe.Offsetof(ic.Tag), 2},
		{"io.result", unsafe.Offsetof(ic.Result), 4},
		{"io.addr", unsafe.Offsetof(ic.Addr), 8},
		{"desc.op_flags", unsafe.Offsetof(d.OpFlags), 0},
		{"desc.nr_sectors", unsafe.Offsetof(d.Sectors), 4},
		{"desc.start_sector", unsafe.Offsetof(d.Start), 8},
		{"desc.addr", unsafe.Offsetof(d.Addr), 16},
	} {
		if f.got != f.want {
			t.Errorf("%s at %d, want %d", f.name, f.got, f.want)
		}
	}
}

func TestPlacesOfRequests(t *testing.T) {
	for _, c := range []struct {
		queue, tag uint16
		want       uint64
	}{
		{0, 0, 0x80000000},
		{0, 1, 0x82000000},
		{1, 0, 0x20080000000},
		{3, 4095, 0x60000000000 + 4095<<25 + 0x80000000},
	} {
		if got := DataOffset(c.queue, c.tag); got != c.want {
			t.Errorf("data of queue %d tag %d at %#x, want %#x", c.queue, c.tag, got, c.want)
		}
	}
	if got := DescOffset(2, 4096); got != 2*98304 {
		t.Errorf("descriptors of queue 2 at %d", got)
	}
	// With 64 KiB pages the stride is not 4096*24: a bug drivers once had.
	if got := DescOffset(1, 65536); got != 131072 {
		t.Errorf("descriptors of queue 1 at %d with 64 KiB pages", got)
	}
	if got := DescBytes(64, 4096); got != 4096 {
		t.Errorf("64 descriptors take %d bytes", got)
	}
	if got := DescBytes(171, 4096); got != 8192 {
		t.Errorf("171 descriptors take %d bytes", got)
	}
}
