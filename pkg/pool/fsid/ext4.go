package fsid

import (
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/google/uuid"
)

// The superblock of ext4, little endian: struct ext4_super_block of fs/ext4/ext4.h.
const (
	ext4SuperOffset = 1024
	ext4SuperBytes  = 1024
	ext4Magic       = 0xef53

	ext4BlocksLow      = 0x04
	ext4FirstDataBlock = 0x14
	ext4LogBlockSize   = 0x18 // block size is 1024 << this
	ext4BlocksPerGroup = 0x20
	ext4MagicAt        = 0x38
	ext4State          = 0x3a
	ext4GroupNumber    = 0x5a
	ext4Compat         = 0x5c
	ext4Incompat       = 0x60
	ext4ROCompat       = 0x64
	ext4UUID           = 0x68
	ext4HashSeed       = 0xec
	ext4BlocksHigh     = 0x150
	ext4ChecksumType   = 0x175
	ext4BackupGroups   = 0x24c // two, of sparse_super2
	ext4ChecksumSeed   = 0x270
	ext4Checksum       = 0x3fc

	ext4Clean          = 1 // s_state
	ext4ChecksumCRC32C = 1 // s_checksum_type
)

// Features by bit: what a file system must have, and what it may.
const (
	ext4SparseSuper2 = 0x200 // compat
	ext4SparseSuper  = 0x1   // ro_compat

	// has_journal, ext_attr, resize_inode, dir_index, sparse_super2, orphan_file.
	ext4MayCompat = 0x4 | 0x8 | 0x10 | 0x20 | ext4SparseSuper2 | 0x1000
	// metadata_csum_seed: other checksums hang on a seed and not on the UUID.
	ext4MustIncompat = 0x2000
	// filetype, extents, 64bit, flex_bg. Not recover: a journal to be replayed.
	ext4MayIncompat = ext4MustIncompat | 0x2 | 0x40 | 0x80 | 0x200
	// metadata_csum.
	ext4MustROCompat = 0x400
	// sparse_super, large_file, huge_file, dir_nlink, extra_isize.
	ext4MayROCompat = ext4MustROCompat | ext4SparseSuper | 0x2 | 0x8 | 0x20 | 0x40
)

// ext4Edits writes UUID and hash seed into the superblock and its copies. With
// metadata_csum_seed they are nowhere else: the journal inside keeps the UUID it
// was made with, which only an external one is matched by.
func ext4Edits(r io.ReaderAt, sizeBytes int64, id uuid.UUID) ([]edit, error) {
	img := image{r, "ext4", sizeBytes}
	seed := uuid.New()
	super, err := ext4Super(img, ext4SuperOffset)
	if err != nil {
		return nil, err
	}
	g, err := ext4Layout(img, super)
	if err != nil {
		return nil, err
	}
	var list []edit
	for _, group := range g.supers() {
		offset := int64(ext4SuperOffset)
		if group != 0 {
			offset = int64(g.firstBlock+group*g.perGroup) * g.blockBytes
		}
		super, err := ext4Super(img, offset)
		if err != nil {
			return nil, err
		}
		if [16]byte(super[ext4UUID:]) != g.uuid || uint64(binary.LittleEndian.Uint16(super[ext4GroupNumber:])) != group&0xffff {
			return nil, img.unknown("the superblock of group %d is not the first one's copy", group)
		}
		copy(super[ext4UUID:], id[:])
		copy(super[ext4HashSeed:], seed[:])
		binary.LittleEndian.PutUint32(super[ext4Checksum:], ext4Sum(super))
		list = append(list, edit{offset, super})
	}
	return list, nil
}

// ext4Super reads a superblock that is whole and has no unknown feature.
func ext4Super(img image, offset int64) ([]byte, error) {
	super, err := img.read(offset, ext4SuperBytes)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	compat, incompat, roCompat := le.Uint32(super[ext4Compat:]), le.Uint32(super[ext4Incompat:]), le.Uint32(super[ext4ROCompat:])
	switch {
	case le.Uint16(super[ext4MagicAt:]) != ext4Magic:
		return nil, img.unknown("no superblock at %d", offset)
	case incompat&ext4MustIncompat == 0 || roCompat&ext4MustROCompat == 0:
		return nil, img.unknown("no metadata_csum_seed")
	case compat&^ext4MayCompat != 0 || incompat&^ext4MayIncompat != 0 || roCompat&^ext4MayROCompat != 0:
		return nil, img.unknown("features %#x, %#x, %#x", compat, incompat, roCompat)
	case super[ext4ChecksumType] != ext4ChecksumCRC32C || le.Uint32(super[ext4Checksum:]) != ext4Sum(super):
		return nil, img.unknown("wrong checksum of the superblock at %d", offset)
	case offset == ext4SuperOffset && le.Uint16(super[ext4State:]) != ext4Clean: // the copies have no state
		return nil, img.unknown("state %#x is not clean", le.Uint16(super[ext4State:]))
	case le.Uint32(super[ext4ChecksumSeed:]) == 0:
		return nil, img.unknown("no checksum seed")
	}
	return super, nil
}

// ext4Sum is the kernel's crc32c, which is not inverted at the end.
func ext4Sum(super []byte) uint32 { return ^crc32.Checksum(super[:ext4Checksum], castagnoli) }

type ext4Geometry struct {
	uuid                 [16]byte
	blockBytes           int64
	firstBlock, perGroup uint64
	groups               uint64
	sparse2, sparse      bool
	backups              [2]uint64
}

func ext4Layout(img image, super []byte) (g ext4Geometry, err error) {
	le := binary.LittleEndian
	shift := le.Uint32(super[ext4LogBlockSize:])
	if shift > 6 {
		return g, img.unknown("block size 1024 << %d", shift)
	}
	g.uuid = [16]byte(super[ext4UUID:])
	g.blockBytes = 1024 << shift
	g.firstBlock = uint64(le.Uint32(super[ext4FirstDataBlock:]))
	g.perGroup = uint64(le.Uint32(super[ext4BlocksPerGroup:]))
	blocks := uint64(le.Uint32(super[ext4BlocksLow:])) | uint64(le.Uint32(super[ext4BlocksHigh:]))<<32
	if g.perGroup == 0 || g.firstBlock > 1 || blocks <= g.firstBlock || blocks > uint64(img.size/g.blockBytes) {
		return g, img.unknown("%d blocks of %d bytes from %d, %d a group, in %d bytes", blocks, g.blockBytes, g.firstBlock, g.perGroup, img.size)
	}
	g.groups = (blocks - g.firstBlock + g.perGroup - 1) / g.perGroup
	g.sparse2 = le.Uint32(super[ext4Compat:])&ext4SparseSuper2 != 0
	g.sparse = le.Uint32(super[ext4ROCompat:])&ext4SparseSuper != 0
	for i := range g.backups {
		g.backups[i] = uint64(le.Uint32(super[ext4BackupGroups+4*i:]))
	}
	if !g.sparse && !g.sparse2 && g.groups > 1 {
		return g, img.unknown("a superblock in each of %d groups", g.groups)
	}
	return g, nil
}

// supers lists the groups that have a superblock: with sparse_super the first two
// and those whose number is a power of 3, 5 or 7.
func (g ext4Geometry) supers() []uint64 {
	list := []uint64{0}
	if g.sparse2 {
		for _, b := range g.backups {
			if b != 0 && b < g.groups {
				list = append(list, b)
			}
		}
		return list
	}
	if g.groups > 1 {
		list = append(list, 1)
	}
	for _, base := range []uint64{3, 5, 7} {
		for n := base; n < g.groups; n *= base {
			list = append(list, n)
		}
	}
	return list
}
