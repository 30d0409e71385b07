package server

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// tagMagic is the upper half of the tag of every csi-ublk device ("ublC"). The
// lower half tells servers apart: one kernel can have several, on a shared
// machine or in tests.
const tagMagic = 0x75626c43

// An owner is who this state directory's devices belong to.
type owner struct {
	id  string
	tag uint64
}

func newOwner(id string) owner {
	h := sha256.Sum256([]byte(id))
	return owner{id: id, tag: tagMagic<<32 | uint64(binary.BigEndian.Uint32(h[:]))}
}

// loadOwner reads the id, or makes one the first time. A damaged file is an
// error and not replaced: with a new id every device of this node would look
// like somebody else's, and its pods would wait for ever.
func loadOwner(path string) (owner, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		id := make([]byte, 16)
		rand.Read(id)
		text := hex.EncodeToString(id)
		if err := writeFileDurably(path, []byte(text+"\n")); err != nil {
			return owner{}, fmt.Errorf("create owner id: %w", err)
		}
		return newOwner(text), nil
	}
	if err != nil {
		return owner{}, fmt.Errorf("read owner id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != 16 {
		return owner{}, fmt.Errorf("read owner id: %s does not hold 32 hex digits; restore it, or remove it once no ublk device is left", path)
	}
	return newOwner(id), nil
}
