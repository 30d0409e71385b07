package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// Pool is an open pool. Its methods may be called from many goroutines; two calls
// for the same volume at a time are the caller's to prevent.
type Pool struct {
	o       Options
	fsType  string
	reflink bool

	// The directories stay open: their descriptors keep the file system from
	// being unmounted, and no path is resolved anew, so nothing lands beside the
	// pool if it ever is.
	root, volumes, snapshots, trash *os.File
	// Their syncs, shared by all who need one at a time.
	volumesSync, snapshotsSync, trashSync groupSync

	templates templates

	limiter *rate.Limiter
	wake    chan struct{} // holds a token when doomed is not empty

	mu             sync.Mutex
	sizes          map[string]int64 // volume id → full size, those being created included
	growing        map[string]int64 // volume id → the size that it is being given
	looks          map[string]map[*look]struct{}
	making         map[string]struct{} // what is promised and has no file yet
	promised       int64               // sum of sizes
	ephemeral      map[string]Ephemeral
	ephemeralBytes int64 // sum of their sizes
	cuts           map[string]Snapshot
	cutBytes       int64     // sum of what they have allocated
	reclaiming     int64     // allocated bytes in the trash
	doomed         []trashed // files in the trash that may be freed
	foreign        int64     // bytes that others use on the file system of a path pool
}

// Open sets a pool up and reads what is in it. It may be repeated at any time and
// after any crash: what is mounted or formatted already is used as it is. ctx
// bounds the setting up, not the pool's life.
//
// A device that holds anything but a pool, and an image larger than its configured
// size, are refused and left as they are.
func Open(ctx context.Context, o Options) (*Pool, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	p, err := open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("open pool %s: %w", o.Name, err)
	}
	return p, nil
}

func open(ctx context.Context, o Options) (*Pool, error) {
	if err := os.MkdirAll(o.root(), 0o700); err != nil {
		return nil, fmt.Errorf("make pool directory: %w", err)
	}
	var err error
	switch o.Kind {
	case KindPath:
		err = bindPath(o)
	case KindDevice:
		err = mountDevice(ctx, o)
	case KindImage:
		err = mountImage(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	p := &Pool{
		o:         o,
		limiter:   rate.NewLimiter(rate.Limit(o.ReclaimBytesPerSecond), reclaimStepBytes),
		wake:      make(chan struct{}, 1),
		sizes:     make(map[string]int64),
		ephemeral: make(map[string]Ephemeral),
		cuts:      make(map[string]Snapshot),
	}
	if err := p.load(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// load opens the layout's directories and builds the index.
func (p *Pool) load() (err error) {
	if p.root, err = os.Open(p.o.root()); err != nil {
		return err
	}
	for name, dir := range map[string]**os.File{"volumes": &p.volumes, "snapshots": &p.snapshots, "trash": &p.trash} {
		path := filepath.Join(p.o.root(), name)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return fmt.Errorf("make layout: %w", err)
		}
		if *dir, err = os.Open(path); err != nil {
			return err
		}
	}
	p.volumesSync.sync, p.snapshotsSync.sync, p.trashSync.sync = p.volumes.Sync, p.snapshots.Sync, p.trash.Sync
	if p.fsType, err = fsTypeOf(p.root); err != nil {
		return err
	}
	if p.reflink, err = probeReflink(p.volumes); err != nil {
		return err
	}
	if err := p.loadTemplates(); err != nil {
		return err
	}
	if err := p.root.Sync(); err != nil {
		return fmt.Errorf("sync layout: %w", err)
	}
	if err := p.index(); err != nil {
		return err
	}
	return p.measureForeign()
}

// index reads the sizes of the volumes and what is in the trash.
func (p *Pool) index() error {
	err := eachFile(p.volumes, func(name string, st unix.Stat_t) {
		p.sizes[name] = st.Size
		p.promised += st.Size
	})
	for name := range p.sizes {
		mark, readErr := readMark(p.volumes, name)
		if mark != nil {
			p.mark(name, mark)
		}
		err = errors.Join(err, readErr)
	}
	if err != nil {
		return fmt.Errorf("read volumes: %w", err)
	}
	if err := p.loadSnapshots(); err != nil {
		return err
	}
	err = eachFile(p.trash, func(name string, st unix.Stat_t) {
		p.reclaiming += allocated(st)
		p.reap(trashed{name: name, counted: allocated(st)})
	})
	if err != nil {
		return fmt.Errorf("read trash: %w", err)
	}
	return nil
}

// eachFile calls f for the regular files in dir, which it lists once. One that goes away
// meanwhile is left out.
func eachFile(dir *os.File, f func(name string, st unix.Stat_t)) error {
	list, err := os.Open(dir.Name())
	if err != nil {
		return err
	}
	defer list.Close()
	names, err := list.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("stat %s: %w", name, err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			f(name, st)
		}
	}
	return nil
}

func allocated(st unix.Stat_t) int64 { return st.Blocks * 512 }

// Name, Kind, FSType and Reflink do not change while the pool is open.
func (p *Pool) Name() string { return p.o.Name }

// Kind says what the pool was made of.
func (p *Pool) Kind() Kind { return p.o.Kind }

// FSType is the file system that holds the pool, as mount(8) names it.
func (p *Pool) FSType() string { return p.fsType }

// Reflink says whether files of the pool can share extents (FICLONE).
func (p *Pool) Reflink() bool { return p.reflink }

// Flush writes everything in the pool's file system to its disk (syncfs).
func (p *Pool) Flush() error {
	if err := unix.Syncfs(int(p.root.Fd())); err != nil {
		return fmt.Errorf("flush pool %s: %w", p.o.Name, err)
	}
	return nil
}

// Close gives up the pool's descriptors and leaves it mounted, because its
// volumes stay in use. Reclaim must have returned. A template that is being made
// is given up.
func (p *Pool) Close() error {
	errs := []error{p.closeTemplates()}
	for _, f := range []*os.File{p.volumes, p.snapshots, p.trash, p.root} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
