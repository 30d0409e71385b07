package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"
)

// interimPrefix begins the names of files in templates/ that are on their way to
// another one.
const interimPrefix = "tmp-"

// templateRetry is how long a template that could not be made is left alone.
const templateRetry = time.Minute

// templates are the templates that a pool keeps. They are a cache: each may go at
// any time, and goes when its space is wanted for a volume.
type templates struct {
	dir *os.File

	flights singleflight.Group
	life    context.Context // of what is being made; ends with the pool
	end     context.CancelFunc
	making  sync.WaitGroup

	// Guarded by the pool's mutex.
	closed bool
	kept   map[string]*template
	bytes  int64 // allocated by all of kept
	failed map[string]failure
}

type template struct {
	sizeBytes, allocated int64
	used                 time.Time
}

type failure struct {
	err   error
	again time.Time
}

// loadTemplates opens the directory, counts what is in it and removes what is of
// no use.
func (p *Pool) loadTemplates() error {
	path := filepath.Join(p.o.root(), "templates")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make layout: %w", err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	t := &p.templates
	t.dir, t.kept, t.failed = dir, make(map[string]*template), make(map[string]failure)
	t.life, t.end = context.WithCancel(context.Background())
	var unwanted []string
	err = eachFile(dir, func(name string, st unix.Stat_t) {
		if strings.HasPrefix(name, interimPrefix) || !p.Templates() {
			unwanted = append(unwanted, name)
			return
		}
		t.kept[name] = &template{sizeBytes: st.Size, allocated: allocated(st), used: time.Unix(st.Mtim.Unix())}
		t.bytes += allocated(st)
	})
	if err != nil {
		return fmt.Errorf("read templates: %w", err)
	}
	for _, name := range append(unwanted, p.surplus(p.o.MaxTemplates)...) {
		if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil {
			return fmt.Errorf("remove template %s: %w", name, err)
		}
	}
	return nil
}

// closeTemplates ends what is being made and waits for it.
func (p *Pool) closeTemplates() error {
	t := &p.templates
	if t.dir == nil {
		return nil
	}
	p.mu.Lock()
	t.closed = true
	p.mu.Unlock()
	t.end()
	t.making.Wait()
	return t.dir.Close()
}

// openTemplate opens a template to read, and has it made if there is none.
func (p *Pool) openTemplate(ctx context.Context, name string, t Template, sizeBytes int64) (*os.File, error) {
	f, err := p.keptTemplate(name, sizeBytes)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	made := p.templates.flights.DoChan(name, func() (any, error) { return nil, p.makeTemplate(name, t, sizeBytes) })
	select {
	case r := <-made:
		if r.Err != nil {
			return nil, r.Err
		}
	case <-ctx.Done():
		return nil, fmt.Errorf("wait until it is made: %w", ctx.Err())
	}
	return p.keptTemplate(name, sizeBytes)
}

func (p *Pool) keptTemplate(name string, sizeBytes int64) (*os.File, error) {
	fd, err := unix.Openat(int(p.templates.dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Size() != sizeBytes) {
		p.dropTemplate(name)
		err = fmt.Errorf("it is %v with %d bytes, not %d, and is removed", st.Mode(), st.Size(), sizeBytes)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.templates.kept[name]; t != nil {
		t.used = time.Now()
	}
	return f, nil
}

// makeTemplate makes a template, unless the last attempt failed just now. It runs
// for all who wait, once at a time for each name.
func (p *Pool) makeTemplate(name string, t Template, sizeBytes int64) error {
	s := &p.templates
	p.mu.Lock()
	failed, kept, closed := s.failed[name], s.kept[name] != nil, s.closed
	if !closed {
		s.making.Add(1)
	}
	p.mu.Unlock()
	if closed {
		return errors.New("the pool is closed")
	}
	defer s.making.Done()
	if failed.err != nil && time.Now().Before(failed.again) {
		return failed.err
	}
	if kept { // by a flight that landed just before
		if f, err := p.keptTemplate(name, sizeBytes); err == nil {
			return f.Close()
		}
	}
	err := p.makeTemplateFile(name, t, sizeBytes)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(s.failed, name)
	if err != nil && s.life.Err() == nil {
		s.failed[name] = failure{err: err, again: time.Now().Add(templateRetry)}
	}
	return err
}

// keep takes a template into the books, and out of them those that it replaces and
// the least recently used of too many, whose names it returns.
func (p *Pool) keep(name string, t Template, st unix.Stat_t) (gone []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(name)
	for other := range p.templates.kept {
		if t.replaces(other) {
			gone = append(gone, other)
			p.forget(other)
		}
	}
	gone = append(gone, p.surplus(p.o.MaxTemplates-1)...)
	p.templates.kept[name] = &template{sizeBytes: st.Size, allocated: allocated(st), used: time.Now()}
	p.templates.bytes += allocated(st)
	return gone
}

// surplus forgets the least recently used of more than limit. Needs p.mu.
func (p *Pool) surplus(limit int) (gone []string) {
	for len(p.templates.kept) > max(0, limit) {
		gone = append(gone, p.forgetOldest())
	}
	return gone
}

// forgetOldest needs p.mu and a template.
func (p *Pool) forgetOldest() string {
	var oldest string
	for name, t := range p.templates.kept {
		if oldest == "" || t.used.Before(p.templates.kept[oldest].used) {
			oldest = name
		}
	}
	p.forget(oldest)
	return oldest
}

// forget needs p.mu.
func (p *Pool) forget(name string) {
	if t := p.templates.kept[name]; t != nil {
		p.templates.bytes -= t.allocated
		delete(p.templates.kept, name)
	}
}

// dropTemplate removes a template. One that can't be removed is counted again
// when the pool is opened.
func (p *Pool) dropTemplate(name string) {
	p.mu.Lock()
	p.forget(name)
	p.mu.Unlock()
	p.unlinkTemplates(name)
}

func (p *Pool) unlinkTemplates(names ...string) {
	for _, name := range names {
		_ = unix.Unlinkat(int(p.templates.dir.Fd()), name, 0)
	}
	if len(names) > 0 {
		p.changed()
	}
}
