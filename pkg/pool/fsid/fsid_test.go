package fsid

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// memory is an image in memory.
type memory []byte

func (m memory) ReadAt(b []byte, offset int64) (int, error)  { return copy(b, m[offset:]), nil }
func (m memory) WriteAt(b []byte, offset int64) (int, error) { return copy(m[offset:], b), nil }

func made(t testing.TB, size int64, name string, args ...string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	program(t, name, append(args, f.Name())...)
	return f
}

func program(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func madeExt4(t testing.TB, size int64, more ...string) *os.File {
	return made(t, size, "mkfs.ext4", append([]string{"-q", "-F", "-b", "4096", "-O", "metadata_csum_seed", "-E", "nodiscard"}, more...)...)
}

func size(t testing.TB, f *os.File) int64 {
	t.Helper()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// The program that made the file system, and the one that checks it, are the
// judges: every superblock says the new UUID and nothing is wrong.
func TestExt4(t *testing.T) {
	for name, c := range map[string]struct {
		size int64
		more []string
	}{
		"one group":        {64 << 20, nil},
		"blocks of 1 KiB":  {64 << 20, []string{"-b", "1024"}},
		"many groups":      {1 << 30, []string{"-b", "1024"}},
		"no journal":       {1 << 30, []string{"-O", "^has_journal"}},
		"sparse_super2":    {1 << 30, []string{"-O", "sparse_super2,^resize_inode"}},
		"not whole blocks": {64<<20 + 512, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := madeExt4(t, c.size, c.more...)
			seed := field(program(t, "dumpe2fs", "-h", f.Name()), "Directory Hash Seed")
			id := uuid.New()
			if err := Set(f, "ext4", c.size, id); err != nil {
				t.Fatal(err)
			}
			said := program(t, "dumpe2fs", "-h", f.Name())
			if got := field(said, "Filesystem UUID"); got != id.String() {
				t.Errorf("UUID %s, want %s", got, id)
			}
			if got := field(said, "Directory Hash Seed"); got == seed {
				t.Errorf("the hash seed is still %s", got)
			}
			program(t, "e2fsck", "-fn", f.Name())
			checkBackups(t, f, id)
			if err := Check(f, "ext4", c.size); err != nil {
				t.Errorf("a second time: %v", err)
			}
		})
	}
}

func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// checkBackups has e2fsck start from each backup that dumpe2fs names.
func checkBackups(t *testing.T, f *os.File, id uuid.UUID) {
	t.Helper()
	text := program(t, "dumpe2fs", f.Name())
	block := field(text, "Block size")
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "Backup superblock at ")
		if !ok {
			continue
		}
		at, _, _ := strings.Cut(rest, ",")
		got := field(program(t, "dumpe2fs", "-h", "-o", "superblock="+at, "-o", "blocksize="+block, f.Name()), "Filesystem UUID")
		if got != id.String() {
			t.Errorf("backup at %s has UUID %q", at, got)
		}
	}
}

func TestExt4ThatIsRefused(t *testing.T) {
	le := binary.LittleEndian
	for name, c := range map[string]struct {
		change func(super []byte)
		says   string
	}{
		"no file system":      {func(s []byte) { clear(s) }, "no superblock"},
		"a bit that flipped":  {func(s []byte) { s[0x78] ^= 1 }, "wrong checksum"},
		"a journal to replay": {func(s []byte) { s[ext4Incompat] |= 4 }, "features"},
		"stable inodes":       {func(s []byte) { s[ext4Compat+1] |= 8 }, "features"},
		"an unknown feature":  {func(s []byte) { s[ext4ROCompat+3] |= 0x80 }, "features"},
		"checksums by UUID":   {func(s []byte) { s[ext4Incompat+1] &^= 0x20 }, "metadata_csum_seed"},
		"errors":              {func(s []byte) { s[ext4State] |= 2 }, "not clean"},
		"larger than the file": {func(s []byte) {
			le.PutUint32(s[ext4BlocksLow:], le.Uint32(s[ext4BlocksLow:])+1)
		}, "blocks"},
		"no blocks in a group": {func(s []byte) { le.PutUint32(s[ext4BlocksPerGroup:], 0) }, "a group"},
		"huge blocks":          {func(s []byte) { s[ext4LogBlockSize] = 40 }, "block size"},
		"copies in all groups": {func(s []byte) { s[ext4ROCompat] &^= 1 }, "in each of"},
	} {
		t.Run(name, func(t *testing.T) {
			f := madeExt4(t, 20<<20, "-b", "1024")
			super := make([]byte, ext4SuperBytes)
			if _, err := f.ReadAt(super, ext4SuperOffset); err != nil {
				t.Fatal(err)
			}
			c.change(super)
			if c.says != "wrong checksum" {
				le.PutUint32(super[ext4Checksum:], ext4Sum(super))
			}
			if _, err := f.WriteAt(super, ext4SuperOffset); err != nil {
				t.Fatal(err)
			}
			refused(t, f, "ext4", c.says)
		})
	}
	t.Run("another copy", func(t *testing.T) {
		f := madeExt4(t, 20<<20, "-b", "1024")
		if _, err := f.WriteAt([]byte("damage"), 8193*1024+ext4UUID); err != nil {
			t.Fatal(err)
		}
		refused(t, f, "ext4", "wrong checksum")
	})
}

// refused checks that an image is not touched.
func refused(t *testing.T, f *os.File, fsType, says string) {
	t.Helper()
	before, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	err = Set(f, fsType, size(t, f), uuid.New())
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want %q", err, says)
	}
	if after, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the image was changed (%v)", err)
	}
}

func TestOtherFileSystems(t *testing.T) {
	if err := Check(memory(make([]byte, 4096)), "btrfs", 4096); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("btrfs: %v", err)
	}
}
