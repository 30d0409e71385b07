package fsid

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"math/bits"

	"github.com/google/uuid"
)

// The superblock of XFS, big endian: struct xfs_dsb of fs/xfs/libxfs/xfs_format.h.
const (
	xfsMagic = "XFSB"

	xfsBlockSize  = 4
	xfsDataBlocks = 8
	xfsUUID       = 32
	xfsLogStart   = 48
	xfsAGBlocks   = 84
	xfsAGCount    = 88
	xfsVersion    = 100
	xfsSectorSize = 102
	xfsAGBlockLog = 124
	xfsInProgress = 126
	xfsIncompat   = 216
	xfsLogIncompt = 220
	xfsCRC        = 224 // little endian
	xfsLSN        = 240
	xfsMetaUUID   = 248
	xfsSuperBytes = 264

	xfsVersion5 = 5 // the low four bits of sb_versionnum

	// meta_uuid: blocks carry sb_meta_uuid, and sb_uuid is free to differ.
	xfsMetaUUIDBit = 1 << 2
	// ftype, sparse inodes, bigtime, nrext64, exchange-range, parent pointers. Not
	// needs-repair; not metadir, whose realtime groups have superblocks too.
	xfsMayIncompat = 1<<0 | 1<<1 | 1<<3 | 1<<5 | 1<<6 | 1<<7
)

// The header of a log record, big endian: struct xlog_rec_header of
// fs/xfs/libxfs/xfs_log_format.h. A block of the log has 512 bytes.
const (
	xlogMagic      = 0xfeedbabe
	xlogBlockBytes = 512

	xlogCycle    = 4
	xlogVersion  = 8
	xlogLen      = 12
	xlogLSN      = 16
	xlogTailLSN  = 24
	xlogCRC      = 32 // little endian
	xlogOps      = 40
	xlogUUID     = 304
	xlogFirstLSN = 1 << 32 // cycle 1, block 0
)

// xfsEdits sets sb_uuid in the superblock of every allocation group and the old
// one as sb_meta_uuid, which all other blocks are stamped with; and h_fs_uuid in
// the one log record that mkfs writes, which a mount compares with sb_uuid.
func xfsEdits(r io.ReaderAt, sizeBytes int64, id uuid.UUID) ([]edit, error) {
	img := image{r, "xfs", sizeBytes}
	g, err := xfsLayout(img)
	if err != nil {
		return nil, err
	}
	var list []edit
	for n := range g.groups {
		offset := n * g.groupBlocks * g.blockBytes
		super, err := xfsSuper(img, offset, g.sectorBytes)
		if err != nil {
			return nil, err
		}
		if [16]byte(super[xfsUUID:]) != g.uuid {
			return nil, img.unknown("the superblock of group %d is not the first one's copy", n)
		}
		copy(super[xfsMetaUUID:], super[xfsUUID:xfsUUID+16])
		copy(super[xfsUUID:], id[:])
		be := binary.BigEndian
		be.PutUint32(super[xfsIncompat:], be.Uint32(super[xfsIncompat:])|xfsMetaUUIDBit)
		binary.LittleEndian.PutUint32(super[xfsCRC:], xfsSum(super))
		list = append(list, edit{offset, super})
	}
	record, err := xlogRecord(img, g)
	if err != nil {
		return nil, err
	}
	copy(record[xlogUUID:], id[:])
	return append(list, edit{g.logOffset, record}), nil
}

type xfsGeometry struct {
	uuid                                 [16]byte
	blockBytes, sectorBytes              int64
	groups, groupBlocks, groupBlocksLog2 int64
	logOffset                            int64
}

func xfsLayout(img image) (g xfsGeometry, err error) {
	be := binary.BigEndian
	head, err := img.read(0, xfsSuperBytes)
	if err != nil {
		return g, err
	}
	g.sectorBytes = int64(be.Uint16(head[xfsSectorSize:]))
	if bits.OnesCount64(uint64(g.sectorBytes)) != 1 || g.sectorBytes < 512 || g.sectorBytes > 32<<10 {
		return g, img.unknown("sectors of %d bytes", g.sectorBytes)
	}
	super, err := xfsSuper(img, 0, g.sectorBytes)
	if err != nil {
		return g, err
	}
	g.uuid = [16]byte(super[xfsUUID:])
	g.blockBytes = int64(be.Uint32(super[xfsBlockSize:]))
	g.groups, g.groupBlocks = int64(be.Uint32(super[xfsAGCount:])), int64(be.Uint32(super[xfsAGBlocks:]))
	g.groupBlocksLog2 = int64(super[xfsAGBlockLog])
	blocks := be.Uint64(super[xfsDataBlocks:])
	switch {
	case bits.OnesCount64(uint64(g.blockBytes)) != 1 || g.blockBytes < g.sectorBytes || g.blockBytes > 64<<10:
		return g, img.unknown("blocks of %d bytes", g.blockBytes)
	case blocks > uint64(img.size/g.blockBytes):
		return g, img.unknown("%d blocks of %d bytes in %d bytes", blocks, g.blockBytes, img.size)
	case g.groups == 0 || g.groupBlocks == 0 || g.groupBlocksLog2 > 31 || g.groupBlocks > 1<<g.groupBlocksLog2,
		uint64(g.groups-1)*uint64(g.groupBlocks) >= blocks || blocks > uint64(g.groups)*uint64(g.groupBlocks):
		return g, img.unknown("%d allocation groups of %d blocks for %d", g.groups, g.groupBlocks, blocks)
	}
	// A file system's block number is its group's and the one in the group.
	start := be.Uint64(super[xfsLogStart:])
	group, block := start>>g.groupBlocksLog2, start&(1<<g.groupBlocksLog2-1)
	if start == 0 || group >= uint64(g.groups) || block >= uint64(g.groupBlocks) {
		return g, img.unknown("a log at %d", start)
	}
	g.logOffset = (int64(group)*g.groupBlocks + int64(block)) * g.blockBytes
	return g, nil
}

// xfsSuper reads a superblock that is whole, that mkfs wrote and nobody after it,
// and that has no unknown feature.
func xfsSuper(img image, offset, sectorBytes int64) ([]byte, error) {
	super, err := img.read(offset, sectorBytes)
	if err != nil {
		return nil, err
	}
	be := binary.BigEndian
	switch {
	case string(super[:4]) != xfsMagic:
		return nil, img.unknown("no superblock at %d", offset)
	case be.Uint16(super[xfsVersion:])&0xf != xfsVersion5:
		return nil, img.unknown("version %d", be.Uint16(super[xfsVersion:])&0xf)
	case be.Uint32(super[xfsIncompat:])&^xfsMayIncompat != 0 || be.Uint32(super[xfsLogIncompt:]) != 0:
		return nil, img.unknown("features %#x, %#x of the log", be.Uint32(super[xfsIncompat:]), be.Uint32(super[xfsLogIncompt:]))
	case binary.LittleEndian.Uint32(super[xfsCRC:]) != xfsSum(super):
		return nil, img.unknown("wrong checksum of the superblock at %d", offset)
	case offset == 0 && super[xfsInProgress] != 0:
		return nil, img.unknown("mkfs has not ended")
	case be.Uint64(super[xfsLSN:]) != 0 && be.Uint64(super[xfsLSN:]) != 1<<64-1:
		return nil, img.unknown("it has been mounted")
	}
	return super, nil
}

// xfsSum is the crc32c of a superblock's sector, its own field taken as zero.
func xfsSum(sector []byte) uint32 {
	sum := crc32.Update(0, castagnoli, sector[:xfsCRC])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	return crc32.Update(sum, castagnoli, sector[xfsCRC+4:])
}

// xlogRecord reads the header of the unmount record that mkfs leaves as the only
// one of the log. Its checksum is 0, which the kernel takes from mkfs; a record
// with another one is the kernel's.
func xlogRecord(img image, g xfsGeometry) ([]byte, error) {
	record, err := img.read(g.logOffset, xlogBlockBytes)
	if err != nil {
		return nil, err
	}
	be := binary.BigEndian
	length := int64(be.Uint32(record[xlogLen:]))
	switch {
	case be.Uint32(record) != xlogMagic || be.Uint32(record[xlogVersion:]) != 2,
		be.Uint32(record[xlogCycle:]) != 1 || be.Uint64(record[xlogLSN:]) != xlogFirstLSN || be.Uint64(record[xlogTailLSN:]) != xlogFirstLSN,
		be.Uint32(record[xlogOps:]) != 1, length == 0 || length%xlogBlockBytes != 0:
		return nil, img.unknown("its log does not begin with the record of mkfs")
	case [16]byte(record[xlogUUID:]) != g.uuid:
		return nil, img.unknown("its log belongs to another file system")
	case be.Uint32(record[xlogCRC:]) != 0:
		return nil, img.unknown("its log has a record of the kernel")
	}
	next, err := img.read(g.logOffset+xlogBlockBytes+length, xlogBlockBytes)
	if err != nil {
		return nil, err
	}
	if be.Uint32(next) != 0 {
		return nil, img.unknown("its log has more than the record of mkfs")
	}
	return record, nil
}
