package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Ephemeral marks the file of a volume that is made when it is published and
// removed when that ends. The mark is part of the file (an extended attribute,
// there before the file has a name), so that whoever finds the file after a crash
// knows what it is and whether anybody can still want it.
type Ephemeral struct {
	// Target is the path where the volume is published.
	Target string `json:"target"`
	// BootID is the boot that it was made in: no such volume outlives it.
	BootID string `json:"bootID"`
}

const ephemeralAttr = "user.csi-ublk.ephemeral"

// CreateEphemeral is Create for a volume with a mark. One that exists with that
// size and mark is left alone; one with another mark or none matches fs.ErrExist.
// Nothing is synced: after a power cut nobody wants the file.
func (p *Pool) CreateEphemeral(id string, sizeBytes int64, e Ephemeral) error {
	if err := checkNew(id, sizeBytes); err != nil {
		return err
	}
	has, err := p.Size(id)
	switch mark, marked := p.Ephemeral(id); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !marked:
		return fmt.Errorf("create volume %s: a volume of that id exists and is not ephemeral: %w", id, fs.ErrExist)
	case mark != e:
		return fmt.Errorf("create volume %s: it exists for target path %s: %w", id, mark.Target, fs.ErrExist)
	case has != sizeBytes:
		return &SizeError{ID: id, HasBytes: has, WantedBytes: sizeBytes}
	default:
		return nil
	}
	if err := p.reserve(id, sizeBytes); err != nil {
		return err
	}
	defer p.endMaking(id)
	p.mark(id, &e)
	if err := p.createFile(id, sizeBytes, &e); err != nil {
		p.release(id)
		return fmt.Errorf("create volume %s in pool %s: %w", id, p.o.Name, err)
	}
	p.changed()
	return nil
}

// Ephemeral returns the mark of a volume, and false if it has none or does not
// exist.
func (p *Pool) Ephemeral(id string) (Ephemeral, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.ephemeral[id]
	return e, ok
}

// Ephemerals returns the marked volumes by id.
func (p *Pool) Ephemerals() map[string]Ephemeral {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]Ephemeral, len(p.ephemeral))
	for id, e := range p.ephemeral {
		all[id] = e
	}
	return all
}

// mark notes the mark of a volume that is in p.sizes.
func (p *Pool) mark(id string, e *Ephemeral) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ephemeral[id] = *e
	p.ephemeralBytes += p.sizes[id]
}

// unmark needs p.mu, and the volume still in p.sizes.
func (p *Pool) unmark(id string) {
	if _, ok := p.ephemeral[id]; ok {
		delete(p.ephemeral, id)
		p.ephemeralBytes -= p.sizes[id]
	}
}

func writeMark(f *os.File, e *Ephemeral) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := unix.Fsetxattr(int(f.Fd()), ephemeralAttr, b, 0); err != nil {
		return fmt.Errorf("mark as ephemeral: %w", err)
	}
	return nil
}

// readMark returns nil for a file without a mark. One that can't be read is of no
// boot, since a power cut may have left it.
func readMark(dir *os.File, name string) (*Ephemeral, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer unix.Close(fd)
	b := make([]byte, 8<<10)
	n, err := unix.Fgetxattr(fd, ephemeralAttr, b)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the mark of %s: %w", name, err)
	}
	e := &Ephemeral{}
	if json.Unmarshal(b[:n], e) != nil {
		return &Ephemeral{}, nil
	}
	return e, nil
}
