package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// journalFormat changes when an old server could not read a new entry rightly.
const journalFormat = 1

// An entry is what the journal keeps of one volume that a user has: it is written
// before the user is told of the device, and removed when the device is stopped.
// Before and after, the device's tag is all that a next server needs to know: a
// device of ours that no entry names was given to nobody.
type entry struct {
	Format int    `json:"format"`
	Volume string `json:"volume"`
	// Generation is new with every attach: what a background delete removes
	// must not be the entry of the attach that followed it.
	Generation string `json:"generation"`
	Path       string `json:"path"`
	Inode      uint64 `json:"inode"`
	Device     uint32 `json:"device"`
	Queues     uint16 `json:"queues"`
	Depth      uint16 `json:"depth"`
	ReadOnly   bool   `json:"readOnly,omitempty"`
	SizeBytes  int64  `json:"sizeBytes"`
	Owner      string `json:"owner"`
	// Worker names the process that serves the device, its fence, and the file system
	// of the file (servedBy).
	Worker string `json:"worker,omitempty"`
	// Failure says why the volume answers EIO to everything, if it does.
	Failure string      `json:"failure,omitempty"`
	Limits  ublk.Limits `json:"limits,omitzero"`
}

func (e *entry) validate() error {
	switch {
	case e.Format != journalFormat:
		return fmt.Errorf("format %d, this server reads %d", e.Format, journalFormat)
	case !validVolumeID(e.Volume):
		return fmt.Errorf("volume id %q", e.Volume)
	case e.Generation == "":
		return errors.New("no generation")
	case e.Device > 1<<20:
		return fmt.Errorf("device %d", e.Device)
	case !filepath.IsAbs(e.Path):
		return fmt.Errorf("path %q", e.Path)
	}
	return nil
}

// A DamagedEntryError says that a file of the journal could not be used, and
// where it is now.
type DamagedEntryError struct {
	Path string // of the file, moved aside
	Err  error
}

func (e *DamagedEntryError) Error() string {
	return fmt.Sprintf("journal entry moved to %s: %v", e.Path, e.Err)
}

func (e *DamagedEntryError) Unwrap() error { return e.Err }

// A journal keeps one file a volume, in a directory of the present boot. Its
// methods may be called at once from many goroutines; only calls for the same
// volume wait for one another.
//
// Nothing is synced to the disk. A ublk device does not outlive its kernel, so
// an entry must survive the process and not the machine: the page cache and the
// atomicity of rename are enough for that, and two hundred attaches at once wait
// for no disk. What a power cut makes of the files does not matter: they are of
// a former boot then and are removed unread.
type journal struct {
	dir   string
	owner string

	mu   sync.Mutex // guards busy
	busy map[string]*volumeMutex
}

// volumeMutex lives for as long as somebody holds or waits for it.
type volumeMutex struct {
	sync.Mutex
	users int
}

// damagedDir is where unusable files are moved to, below the journal.
const damagedDir = "damaged"

// openJournal opens the journal of this boot in dir and removes those of former
// boots, whose devices are gone.
func openJournal(dir, bootID, owner string) (*journal, error) {
	j := &journal{dir: filepath.Join(dir, bootID), owner: owner, busy: make(map[string]*volumeMutex)}
	if err := os.MkdirAll(filepath.Join(j.dir, damagedDir), 0o700); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	boots, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	for _, b := range boots {
		if b.Name() == bootID {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, b.Name())); err != nil {
			return nil, fmt.Errorf("remove the journal of a former boot: %w", err)
		}
	}
	return j, nil
}

func (j *journal) path(volume string) string { return filepath.Join(j.dir, volume+".json") }

func (j *journal) lock(volume string) (unlock func()) {
	j.mu.Lock()
	m := j.busy[volume]
	if m == nil {
		m = &volumeMutex{}
		j.busy[volume] = m
	}
	m.users++
	j.mu.Unlock()
	m.Lock()
	return func() {
		m.Unlock()
		j.mu.Lock()
		if m.users--; m.users == 0 {
			delete(j.busy, volume)
		}
		j.mu.Unlock()
	}
}

// put writes the volume's entry. When it returns the entry outlives the process.
func (j *journal) put(e *entry) error {
	defer j.lock(e.Volume)()
	return j.write(e)
}

// write needs the volume's lock.
func (j *journal) write(e *entry) error {
	e.Format, e.Owner = journalFormat, j.owner
	if err := e.validate(); err != nil {
		return fmt.Errorf("journal volume %s: %w", e.Volume, err)
	}
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("journal volume %s: %w", e.Volume, err)
	}
	if err := replaceFile(j.path(e.Volume), append(b, '\n'), nil); err != nil {
		return fmt.Errorf("journal volume %s: %w", e.Volume, err)
	}
	return nil
}

// update is put for an entry that is there, of the generation of latest; if it is not,
// the volume was detached meanwhile, and nothing is written. latest is asked when it is
// this update's turn: of two at a time the later one must not undo the earlier.
func (j *journal) update(volume string, latest func() entry) error {
	defer j.lock(volume)()
	e := latest()
	has, err := j.read(j.path(volume))
	if errors.Is(err, fs.ErrNotExist) || err == nil && has.Generation != e.Generation {
		return nil
	}
	return j.write(&e)
}

// rejournal brings a volume's journal entry up to date.
func (s *Server) rejournal(v *volume) error {
	return s.journal.update(v.entry.Volume, func() entry { return s.table.entryOf(v) })
}

// remove drops the volume's entry if it is of this generation.
func (j *journal) remove(volume, generation string) error {
	defer j.lock(volume)()
	e, err := j.read(j.path(volume))
	if errors.Is(err, fs.ErrNotExist) || err == nil && e.Generation != generation {
		return nil
	}
	// One that can't be read is ours to remove as well: nobody else wrote it.
	if err := os.Remove(j.path(volume)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal volume %s: %w", volume, err)
	}
	return nil
}

func (j *journal) read(path string) (*entry, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return decodeEntry(b)
}

func decodeEntry(b []byte) (*entry, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	e := &entry{}
	if err := d.Decode(e); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	return e, e.validate()
}

// load reads all entries. Files that can't be used, for they are damaged or of
// another server, are moved aside and reported, so that one bad file neither
// stops the server nor the next one.
func (j *journal) load() (entries []*entry, damaged []*DamagedEntryError, err error) {
	list, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read journal: %w", err)
	}
	for _, f := range list {
		name := filepath.Join(j.dir, f.Name())
		switch {
		case f.IsDir():
			continue
		case strings.HasPrefix(f.Name(), tempPrefix):
			if err := os.Remove(name); err != nil {
				return nil, nil, fmt.Errorf("read journal: %w", err)
			}
			continue
		}
		e, err := j.read(name)
		switch {
		case err != nil:
		case e.Owner != j.owner:
			err = fmt.Errorf("it belongs to owner %q, not %q", e.Owner, j.owner)
		case f.Name() != e.Volume+".json":
			err = fmt.Errorf("it is of volume %q", e.Volume)
		default:
			entries = append(entries, e)
			continue
		}
		aside := filepath.Join(j.dir, damagedDir, f.Name())
		if err := os.Rename(name, aside); err != nil {
			return nil, nil, fmt.Errorf("move journal entry aside: %w", err)
		}
		damaged = append(damaged, &DamagedEntryError{Path: aside, Err: err})
	}
	return entries, damaged, nil
}
